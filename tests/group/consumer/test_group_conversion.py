"""Both protocols in one group, and from one to the other without stopping."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import Refusal
from kbroker.group.classic.consumer_protocol_codec import read_assignment
from kbroker.group.classic.states import GroupState
from kbroker.group.consumer.consumer_state import ConsumerGroupStatus
from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import Consumer, ConsumerWorld, settle, subscription
from tests.group.world import GROUP

UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


class ClassicConsumer:
    """A consumer of the classic protocol, as far as it needs no leader: it joins, syncs, and rejoins when told."""

    def __init__(self, world: ConsumerWorld, **options: Any) -> None:
        self.world, self.options = world, options
        self.owned: list[int] = []
        self.generation = -1
        self.member_id = ""
        self.join()

    def join(self) -> Any:
        answer = self.world.join(
            self.member_id,
            protocols=[("range", subscription(["topic"], {"topic": self.owned}))],
            **self.options,
        )
        if answer.is_waiting:
            return answer
        if answer.code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.response.member_id
            return self.join()
        assert answer.code == 0, answer.response
        self.member_id = answer.response.member_id
        self.generation = answer.response.generation_id
        return answer

    def sync(self) -> int:
        body = self.world
        try:
            answer = body.sync(self.member_id, self.generation, instance_id=self.options.get("instance_id"))
        except Refusal as refusal:
            return refusal.code
        if answer.code == 0:
            self.owned = [index for _, indexes in read_assignment(answer.response.assignment) for index in indexes]
        return answer.code

    def beat(self) -> int:
        instance_id = self.options.get("instance_id")
        code = self.world.heartbeat(self.member_id, self.generation, instance_id=instance_id)
        if code in (REBALANCE, ErrorCode.ILLEGAL_GENERATION):
            self.owned = self.owned if code == REBALANCE else []
            self.join()
            self.sync()
        return code


def mixed(world: ConsumerWorld) -> tuple[Consumer, ClassicConsumer]:
    new = Consumer(world, "new")
    old = ClassicConsumer(world)
    old.sync()
    for _ in range(6):
        new.beat()
        old.beat()
    assert (new.partitions, sorted(old.owned)) == ([0, 1], [2, 3])
    return new, old


def classic_group(world: ConsumerWorld, **options: Any) -> ClassicConsumer:
    """One classic member with all four partitions, in a stable group."""
    member = ClassicConsumer(world, **options)
    everything = (
        b"\0\1\0\0\0\1\0\5topic\0\0\0\4" + bytes([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]) + b"\xff" * 4
    )
    answer = world.sync(
        member.member_id,
        member.generation,
        {member.member_id: everything},
        instance_id=options.get("instance_id"),
    )
    assert answer.code == 0
    member.owned = [0, 1, 2, 3]
    assert world.state is GroupState.STABLE
    return member


def test_a_classic_member_shares_with_the_others() -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    assert world.state is ConsumerGroupStatus.STABLE
    assert old.generation == 2
    assert old.beat() == 0
    state = world.consumers
    assert state is not None
    assert state.members[old.member_id].classic is not None


def test_nobody_leads_and_a_join_is_answered_at_once() -> None:
    world = ConsumerWorld()
    Consumer(world, "new")
    response = ClassicConsumer(world).join().response
    assert (response.leader, response.members, response.protocol_name) == ("", [], "range")


def test_a_member_may_switch_protocols_under_its_id() -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    assert world.beat(old.member_id, old.generation).error_code == 0
    state = world.consumers
    assert state is not None
    assert state.members[old.member_id].classic is None


def test_a_classic_member_is_told_to_rejoin_and_must_do_so_in_time() -> None:
    world = ConsumerWorld()
    new, old = mixed(world)
    Consumer(world, "third")
    for _ in range(7):
        assert world.heartbeat(old.member_id, old.generation) == REBALANCE
        new.beat()
        world.advance(9_000)
    assert world.heartbeat(old.member_id, old.generation) == UNKNOWN


def test_a_classic_member_that_never_syncs_is_gone_after_its_rebalance_timeout() -> None:
    world = ConsumerWorld()
    new = Consumer(world, "new")
    old = ClassicConsumer(world)
    for _ in range(7):
        world.heartbeat(old.member_id, old.generation)
        new.beat()
        world.advance(9_000)
    new.beat()
    assert new.partitions == [0, 1, 2, 3]


def test_a_classic_member_that_is_silent_for_its_own_session_is_gone() -> None:
    world = ConsumerWorld()
    new, _ = mixed(world)
    world.advance(10_000)
    new.beat()
    assert new.partitions == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("generation", "name", "code"),
    [(7, "range", ErrorCode.ILLEGAL_GENERATION), (2, "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)],
)
def test_a_sync_is_checked(generation: int, name: str, code: int) -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    with pytest.raises(Refusal) as refused:
        world.sync(old.member_id, generation, protocol_name=name)
    assert refused.value.code == code
    with pytest.raises(Refusal) as refused:
        world.sync("new", 2)
    assert refused.value.code == UNKNOWN


@pytest.mark.parametrize(
    "joining",
    [
        {"protocol_type": "connect"},
        {"protocols": [("sticky", subscription(["topic"]))]},
        {"protocols": []},
        {"protocols": [("range", b"?")]},
    ],
)
def test_a_classic_member_that_has_nothing_in_common_is_refused(joining: dict[str, Any]) -> None:
    world = ConsumerWorld()
    mixed(world)
    with pytest.raises(Refusal) as refused:
        world.join("x", **joining)
    assert refused.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_commits_of_classic_members_carry_the_generation() -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    assert world.commit(4, member_id=old.member_id, generation=2, version=7) == {}
    with pytest.raises(Refusal) as refused:
        world.commit(4, member_id=old.member_id, generation=1, version=7)
    assert refused.value.code == ErrorCode.ILLEGAL_GENERATION


def test_a_classic_group_becomes_a_consumer_group_with_its_first_new_member() -> None:
    world = ConsumerWorld()
    old = classic_group(world)
    new = Consumer(world, "new")
    assert (new.epoch, new.partitions) == (2, [])
    assert world.state is ConsumerGroupStatus.RECONCILING
    assert GROUP not in world.shard.hard.groups
    for _ in range(6):
        old.beat()
        new.beat()
    assert (sorted(old.owned), new.partitions) == ([0, 1], [2, 3])
    world.leave((old.member_id, None))
    new.beat()
    assert new.partitions == [0, 1, 2, 3]


def test_who_waits_in_the_classic_group_comes_again() -> None:
    world = ConsumerWorld()
    old = classic_group(world)
    second_id = world.join().response.member_id
    waiting = world.join(second_id, protocols=[("range", subscription(["topic"]))])
    assert waiting.is_waiting
    Consumer(world, "new")
    assert waiting.code == REBALANCE
    state = world.consumers
    assert state is not None
    assert set(state.members) == {old.member_id, second_id, "new"}


def test_the_last_new_member_that_leaves_makes_it_a_classic_group_again() -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    world.beat("new", -1)
    assert world.state is GroupState.PREPARING_REBALANCE
    assert world.shard.hard.consumer_groups == {}
    group = world.group
    assert group is not None
    assert (group.generation, group.protocol, list(group.roster.by_id)) == (2, "range", [old.member_id])
    assert world.heartbeat(old.member_id, 2) == REBALANCE
    joined = old.join().response
    assert (joined.generation_id, joined.leader) == (3, old.member_id)


def test_it_becomes_classic_when_the_last_new_member_falls_silent_too() -> None:
    world = ConsumerWorld()
    _, old = mixed(world)
    for _ in range(6):
        world.advance(9_000)
        world.heartbeat(old.member_id, 2)
    assert world.state is GroupState.PREPARING_REBALANCE


def test_what_a_member_still_holds_is_not_given_away_by_changing_protocols_back_and_forth() -> None:
    world = ConsumerWorld({"topic": 2})
    world.join_consumer("new", [])
    first = ClassicConsumer(world)
    first.sync()
    assert first.owned == [0, 1]
    second = ClassicConsumer(world)
    world.beat("new", -1)
    assert world.state is GroupState.PREPARING_REBALANCE
    world.join_consumer("new", [])
    state = world.consumers
    assert state is not None
    assert set(state.owners.values()) == {first.member_id}
    for _ in range(6):
        first.beat()
        second.beat()
    assert sorted([first.owned, second.owned]) == [[0], [1]]


def test_a_static_member_that_comes_back_with_the_other_protocol_keeps_its_part() -> None:
    world = ConsumerWorld()
    old = classic_group(world, instance_id="one")
    new = Consumer(world, "new", instance_id="one")
    assert (new.partitions, world.state) == ([0, 1, 2, 3], ConsumerGroupStatus.STABLE)
    assert old.beat() == ErrorCode.FENCED_INSTANCE_ID
    back = ClassicConsumer(world, instance_id="one")
    assert world.state is GroupState.STABLE
    assert back.sync() == 0
    assert back.owned == [0, 1, 2, 3]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_replay_says_the_same_after_a_conversion(is_restarted: bool) -> None:
    world = ConsumerWorld()
    old = classic_group(world)
    Consumer(world, "new")
    if is_restarted:
        world.restart()
    old.beat()
    world.beat("new", -1)
    before = world.shard.hard
    world.restart()
    assert world.shard.hard == before
    assert world.heartbeat(old.member_id, old.generation) in (0, ErrorCode.ILLEGAL_GENERATION, REBALANCE)


@pytest.mark.parametrize(("may_upgrade", "may_downgrade"), [(False, True), (True, False)])
def test_the_policy_may_forbid_either(may_upgrade: bool, may_downgrade: bool) -> None:
    world = ConsumerWorld(may_upgrade=may_upgrade, may_downgrade=may_downgrade)
    if may_upgrade:
        mixed(world)
        world.beat("new", -1)
        assert world.shard.hard.groups == {}
        assert world.state is ConsumerGroupStatus.ASSIGNING
    else:
        old = classic_group(world)
        assert world.join_consumer("new") == ErrorCode.GROUP_ID_NOT_FOUND
        assert old.beat() == 0


@pytest.mark.parametrize("joining", [{"protocol_type": "connect"}, {"protocols": [("range", b"??")]}])
def test_other_groups_than_consumers_do_not_change(joining: dict[str, Any]) -> None:
    world = ConsumerWorld()
    member_id, answer = world.join_new(**joining)
    world.sync(member_id, answer.response.generation_id, {member_id: b""})
    assert world.join_consumer("new") == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat("new", 1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.heartbeat(member_id, 1) == 0


def test_an_empty_group_takes_either_protocol_and_keeps_its_offsets() -> None:
    world = ConsumerWorld()
    world.commit(7)
    Consumer(world, "new")
    world.beat("new", -1)
    assert world.state.value == "Empty"
    old = ClassicConsumer(world)
    assert (world.state.value, world.offset(), old.generation) == ("CompletingRebalance", 7, 1)
    world.leave((old.member_id, None))
    assert world.state is GroupState.EMPTY
    assert Consumer(world, "new").partitions == [0, 1, 2, 3]
    assert world.offset() == 7


def test_settle_ends_with_every_partition_owned_once() -> None:
    world = ConsumerWorld({"topic": 7})
    new, old = Consumer(world, "new"), ClassicConsumer(world)
    old.sync()
    for _ in range(8):
        settle(new, rounds=1)
        old.beat()
    assert sorted(new.partitions + old.owned) == list(range(7))
