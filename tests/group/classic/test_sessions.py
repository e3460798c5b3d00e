"""Members that stay, go and vanish."""

from __future__ import annotations

from kbroker.group.classic.states import GroupState
from kbroker.protocol.error_codes import ErrorCode
from tests.group.world import World


def test_heartbeats_keep_a_member() -> None:
    world = World()
    (member,) = world.settle(1)
    for _ in range(20):
        world.advance(9000)
        assert world.heartbeat(member, 1) == 0


def test_a_member_without_heartbeats_is_gone_after_its_session_timeout() -> None:
    world = World()
    (member,) = world.settle(1)
    world.advance(9999)
    assert world.state.value == "Stable"
    world.advance(1)
    assert world.state.value == "Empty"
    assert world.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_others_learn_of_a_lost_member_by_their_heartbeat() -> None:
    world = World()
    leader, lost = world.settle(2)
    world.advance(5000)
    world.heartbeat(leader, 2)
    world.advance(5000)
    assert world.heartbeat(leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = world.join(leader)
    assert [member.member_id for member in rejoined.response.members] == [leader]
    assert world.heartbeat(lost, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_keeps_a_member_as_well() -> None:
    world = World()
    (member,) = world.settle(1)
    world.advance(9000)
    world.commit(5, member_id=member, generation=1)
    world.advance(9000)
    assert world.heartbeat(member, 1) == 0


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    world = World()
    (member,) = world.settle(1)
    assert world.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_between_join_and_sync_counts() -> None:
    world = World()
    member, _ = world.join_new()
    world.advance(9000)
    assert world.heartbeat(member, 1) == 0
    world.advance(9000)
    assert world.sync(member, 1, {member: b"x"}).code == 0


def test_a_member_that_waits_in_a_join_does_not_time_out() -> None:
    world = World()
    leader, other = world.settle(2, rebalance_timeout_ms=300_000)
    waiting = world.join(leader, rebalance_timeout_ms=300_000)
    for _ in range(6):
        world.advance(9000)
        assert world.heartbeat(other, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.is_waiting
    world.join(other, rebalance_timeout_ms=300_000)
    assert waiting.code == 0
    world.advance(9999)
    assert world.heartbeat(leader, 3) == 0


def test_a_new_member_whose_join_is_never_read_is_forgotten_after_five_minutes() -> None:
    world = World()
    leader, keeper = world.settle(2, rebalance_timeout_ms=3_600_000)
    _, abandoned = world.join_new(rebalance_timeout_ms=3_600_000)
    for _ in range(60):
        world.advance(5000)
        world.heartbeat(leader, 2)
        world.heartbeat(keeper, 2)
    assert abandoned.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_makes_room_at_once() -> None:
    world = World()
    leader, other = world.settle(2)
    assert world.leave((other, None)) == [0]
    assert world.join(leader).response.generation_id == 3


def test_several_leave_together_and_each_has_its_outcome() -> None:
    world = World()
    first, second, third = world.settle(3)
    assert world.leave((first, None), ("stranger", None), (second, None)) == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert [member.member_id for member in world.join(third).response.members] == [third]


def test_leaving_a_group_that_is_not_there_is_refused() -> None:
    assert World().leave(("nobody", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_an_id_that_was_not_used_yet_can_leave() -> None:
    world = World()
    (leader,) = world.settle(1)
    pending = world.join().response.member_id
    rejoined = world.join(leader)
    assert rejoined.is_waiting
    assert world.leave((pending, None)) == [0]
    assert rejoined.code == 0


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    world = World()
    leader, other = world.settle(2)
    waiting = world.join(leader)
    world.leave((leader, None))
    assert waiting.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(other).code == 0


def test_a_leader_that_leaves_while_others_sync_sends_them_back() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.leave((leader, None))
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_to_leave_leaves_an_empty_group_on_record() -> None:
    world = World()
    (member,) = world.settle(1)
    world.leave((member, None))
    world.restart()
    assert world.state is GroupState.EMPTY
    assert world.group is not None
    assert (world.group.generation, world.group.protocol_type) == (2, "consumer")


def test_an_unfinished_rebalance_is_forgotten_by_a_restart() -> None:
    world = World()
    leader, follower = world.settle(2)
    world.join_new()
    world.restart()
    assert world.state is GroupState.STABLE
    assert world.sync(follower, 2).response.assignment == follower.encode()
    assert world.heartbeat(leader, 2) == 0


def test_members_have_a_whole_session_to_come_back_after_a_restart() -> None:
    world = World()
    leader, follower = world.settle(2)
    world.advance(9000)
    world.restart()
    world.advance(9000)
    assert world.heartbeat(leader, 2) == 0
    world.advance(1000)
    assert world.heartbeat(leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(follower, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_refused_append_sends_a_group_back_to_its_last_record() -> None:
    world = World()
    leader, follower = world.settle(2)
    joiner, _ = world.join_new()
    world.join(leader)
    world.join(follower)
    waiting = world.sync(joiner, 3)
    pending_responses, result = world.shard.abandon("group", world.now)
    world.apply(result)
    assert pending_responses == [waiting]
    assert world.state is GroupState.STABLE
    assert world.heartbeat(leader, 2) == ErrorCode.ILLEGAL_GENERATION  # so that it joins again
    assert world.join(leader).is_waiting
    assert world.join(follower).response.generation_id == 4
