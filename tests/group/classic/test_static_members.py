"""Static membership (KIP-345): a process that is known by its instance id comes back without a rebalance."""

from __future__ import annotations

from kbroker.group.classic.states import GroupState
from kbroker.protocol.error_codes import ErrorCode
from tests.group.world import World


def settled(world: World) -> tuple[str, str]:
    """A leader `a` and a follower `b`, in generation 2."""
    leader = world.join(instance_id="a").response.member_id
    joined = world.join(instance_id="b")
    world.join(leader, instance_id="a")
    follower = joined.response.member_id
    world.sync(leader, 2, {leader: b"part a", follower: b"part b"}, instance_id="a")
    world.sync(follower, 2, instance_id="b")
    assert world.state is GroupState.STABLE
    return leader, follower


def test_a_static_member_needs_no_id_first() -> None:
    answer = World().join(instance_id="a")
    assert (answer.code, answer.response.member_id) == (0, "a-id1")


def test_a_restart_causes_no_rebalance_and_returns_the_old_assignment() -> None:
    world = World()
    leader, follower = settled(world)
    back = world.join(instance_id="b").response
    assert (back.error_code, back.generation_id, back.leader) == (0, 2, leader)
    assert back.member_id != follower
    assert world.heartbeat(leader, 2, instance_id="a") == 0
    assert world.sync(back.member_id, 2, instance_id="b").response.assignment == b"part b"


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    world = World()
    settled(world)
    back = world.join(instance_id="a").response
    assert (back.leader, back.skip_assignment) == (back.member_id, True)
    assert [member.group_instance_id for member in back.members] == ["b", "a"]
    assert world.sync(back.member_id, 2, instance_id="a").response.assignment == b"part a"


def test_an_older_leader_that_comes_back_believes_that_its_old_self_leads() -> None:
    world = World()
    leader, _ = settled(world)
    back = world.join(instance_id="a", version=8).response
    assert (back.leader, back.members, back.skip_assignment) == (leader, [], False)


def test_a_second_process_fences_the_first() -> None:
    world = World()
    _, follower = settled(world)
    world.join(instance_id="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(follower, 2, instance_id="b") == fenced
    assert world.join(follower, instance_id="b").code == fenced
    assert world.sync(follower, 2, instance_id="b").code == fenced
    assert world.leave((follower, "b")) == [fenced]


def test_a_process_that_waits_in_a_join_is_fenced_by_another() -> None:
    world = World()
    leader, follower = settled(world)
    world.join(instance_id="c")
    waiting = world.join(follower, instance_id="b")
    second = world.join(instance_id="b")
    assert waiting.code == ErrorCode.FENCED_INSTANCE_ID
    assert second.is_waiting
    world.join(leader, instance_id="a")
    assert second.code == 0


def test_a_process_that_waits_in_a_sync_is_fenced_by_another() -> None:
    world = World()
    leader = world.join(instance_id="a").response.member_id
    follower = world.join(instance_id="b")
    world.join(leader, instance_id="a")
    waiting = world.sync(follower.response.member_id, 2, instance_id="b")
    world.join(instance_id="b")
    assert waiting.code == ErrorCode.FENCED_INSTANCE_ID
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_return_with_another_protocol_causes_a_rebalance() -> None:
    world = World()
    both = [("range", b"r"), ("sticky", b"s")]
    leader = world.join(instance_id="a", protocols=both).response.member_id
    world.sync(leader, 1, {leader: b"x"}, instance_id="a")
    back = world.join(instance_id="a", protocols=[("sticky", b"s"), ("range", b"r")])
    assert (back.response.generation_id, back.response.protocol_name) == (2, "sticky")


def test_a_static_member_that_stays_away_is_gone_after_its_session_timeout() -> None:
    world = World()
    leader, _ = settled(world)
    world.advance(6000)
    world.heartbeat(leader, 2, instance_id="a")
    world.advance(4000)
    assert world.heartbeat(leader, 2, instance_id="a") == ErrorCode.REBALANCE_IN_PROGRESS


def test_static_members_survive_a_restart_of_the_broker() -> None:
    world = World()
    leader, _ = settled(world)
    back = world.join(instance_id="b").response.member_id
    world.restart()
    assert world.sync(back, 2, instance_id="b").response.assignment == b"part b"
    assert world.heartbeat(leader, 2, instance_id="a") == 0
    again = world.join(instance_id="b").response
    assert (again.generation_id, again.error_code) == (2, 0)
    assert world.sync(again.member_id, 2, instance_id="b").response.assignment == b"part b"


def test_a_static_member_that_misses_a_rebalance_keeps_its_place() -> None:
    world = World()
    leader, follower = settled(world)
    joined = world.join(instance_id="c", rebalance_timeout_ms=8000)
    rejoined = world.join(leader, instance_id="a", rebalance_timeout_ms=8000)
    for _ in range(20):
        world.advance(3000)
        world.heartbeat(follower, 2, instance_id="b")
    assert joined.code == 0
    assert {member.group_instance_id for member in rejoined.response.members} == {"a", "b", "c"}


def test_an_admin_removes_a_static_member_by_its_instance_id() -> None:
    world = World()
    leader, follower = settled(world)
    assert world.leave(("", "b"), ("", "unknown")) == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.heartbeat(follower, 2, instance_id="b") == ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.group_instance_id for member in world.join(leader, instance_id="a").response.members] == ["a"]


def test_a_fenced_process_cannot_commit() -> None:
    world = World()
    _, follower = settled(world)
    assert world.commit(7, member_id=follower, generation=2, instance_id="b") == {}
    world.join(instance_id="b")
    group = world.group
    assert group is not None
    assert group.validate_commit(follower, "b", 2) == ErrorCode.FENCED_INSTANCE_ID
