"""Groups of the consumer protocol (KIP-848): heartbeat by heartbeat."""

from __future__ import annotations

import pytest

from kbroker.errors import Refusal
from kbroker.group.consumer.consumer_records import STABLE, UNRELEASED, UNREVOKED
from kbroker.group.consumer.consumer_state import ConsumerGroupStatus
from kbroker.group.result import ConsumerTimeouts
from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import Consumer, ConsumerWorld, set_topics, settle, topic_id
from tests.group.world import GROUP

TOPIC = topic_id("topic")


def test_the_first_member_gets_everything_with_its_first_heartbeat() -> None:
    world = ConsumerWorld()
    answer = world.join_consumer("a")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 1, 5000)
    assert [(topic.topic_id, topic.partitions) for topic in answer.assignment.topic_partitions] == [
        (TOPIC, [0, 1, 2, 3])
    ]
    assert world.state is ConsumerGroupStatus.STABLE


def test_a_member_without_an_id_is_given_one() -> None:
    assert ConsumerWorld().join_consumer("").member_id == "id1"


def test_a_heartbeat_with_nothing_new_is_answered_without_an_assignment_and_writes_nothing() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    count = len(world.log)
    answer = world.beat("a", 1)
    assert (answer.member_epoch, answer.assignment, len(world.log)) == (1, None, count)
    full = a.beat(topics=["topic"], rebalance_timeout_ms=60_000)
    assert full.assignment is not None
    assert len(world.log) == count


def test_a_partition_is_taken_back_before_it_is_given_to_another() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    b = Consumer(world, "b")
    state = world.consumers
    assert state is not None
    assert (b.epoch, b.partitions) == (2, [])
    assert state.current("b").state == UNRELEASED
    response = world.beat("a", 1)
    assert [topic.partitions for topic in response.assignment.topic_partitions] == [[0, 1]]
    assert (response.member_epoch, state.current("a").state) == (1, UNREVOKED)
    b.beat()
    assert b.partitions == []
    assert world.state.value == "Reconciling"
    assert a.beat().assignment is None  # it says that it still has all four
    a.owned = {TOPIC: frozenset([0, 1])}
    assert (a.beat().member_epoch, state.current("a").state) == (2, STABLE)
    b.beat()
    assert (a.partitions, b.partitions) == ([0, 1], [2, 3])
    assert world.state is ConsumerGroupStatus.STABLE


def test_what_a_member_leaves_is_shared_by_those_who_stay() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    left = world.beat("b", -1)
    assert (left.member_id, left.member_epoch) == ("b", -1)
    assert world.state is ConsumerGroupStatus.ASSIGNING
    a.beat()
    assert (a.partitions, a.epoch) == ([0, 1, 2, 3], 3)


def test_a_member_that_is_silent_for_its_session_is_gone() -> None:
    world = ConsumerWorld()
    world.timeouts = ConsumerTimeouts(session_ms=10_000, heartbeat_interval_ms=700)
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    world.advance(6_000)
    assert a.beat().heartbeat_interval_ms == 700
    world.advance(4_000)
    a.beat()
    assert a.partitions == [0, 1, 2, 3]
    assert b.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_have_all_gone_is_empty_and_nobody_watches_it() -> None:
    world = ConsumerWorld()
    Consumer(world, "a")
    world.advance(45_000)
    assert world.state is ConsumerGroupStatus.EMPTY
    assert world.wakes == []


def test_a_member_that_does_not_give_back_in_time_is_fenced() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    b = Consumer(world, "b")
    held = a.owned
    for _ in range(7):
        a.owned = held
        a.beat()
        b.beat()
        world.advance(10_000)
    assert b.partitions == [0, 1, 2, 3]
    a.owned = held
    assert a.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_one_that_gives_back_in_time_stays() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    for _ in range(12):
        settle(a, b, rounds=1)
        world.advance(10_000)
    assert (a.partitions, b.partitions) == ([0, 1], [2, 3])


@pytest.mark.parametrize(("epoch", "owned"), [(7, None), (0, None), (1, None), (1, {TOPIC: frozenset([2])})])
def test_another_epoch_than_its_own_fences_a_member(epoch: int, owned: dict[bytes, frozenset[int]] | None) -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    assert (a.epoch, a.partitions) == (2, [0, 1])
    assert world.beat("a", epoch, owned=owned) == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_has_missed_an_answer_may_be_one_epoch_behind() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    again = world.beat("a", 1, owned={TOPIC: frozenset([0])}, topics=["topic"], rebalance_timeout_ms=60_000)
    assert (again.member_epoch, again.assignment.topic_partitions[0].partitions) == (2, [0, 1])


def test_a_join_that_is_repeated_changes_nothing() -> None:
    world = ConsumerWorld()
    first = world.join_consumer("a")
    count = len(world.log)
    again = world.join_consumer("a")
    assert (again.member_epoch, len(world.log)) == (first.member_epoch, count)
    assert again.assignment == first.assignment


def test_unknown_members_and_groups_are_told_so() -> None:
    world = ConsumerWorld()
    assert world.beat("a", 3) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat("a", -1) == ErrorCode.GROUP_ID_NOT_FOUND
    world.join_consumer("a")
    assert world.beat("b", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("b", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_else() -> None:
    world = ConsumerWorld(consumer_max_size=1)
    a = Consumer(world, "a")
    assert world.join_consumer("b") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.beat().error_code == 0


def test_new_partitions_are_noticed_with_the_next_heartbeat() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    set_topics(world.topics, {"topic": 6})
    a.beat()
    assert (a.epoch, a.partitions) == (2, [0, 1, 2, 3, 4, 5])


def test_a_topic_that_comes_later_is_assigned_then_and_one_that_goes_is_taken_away() -> None:
    world = ConsumerWorld({})
    a = Consumer(world, "a", ["later"])
    assert (a.epoch, a.partitions) == (1, [])
    set_topics(world.topics, {"later": 2})
    a.beat()
    assert a.partitions == [0, 1]
    set_topics(world.topics, {})
    settle(a)
    assert a.partitions == []


def test_topics_of_others_change_nothing() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    set_topics(world.topics, {"topic": 4, "another": 3})
    a.beat()
    assert a.epoch == 1


def test_a_member_may_change_its_subscription() -> None:
    world = ConsumerWorld({"topic": 2, "other": 3})
    a = Consumer(world, "a")
    a.beat(topics=["other"])
    settle(a)
    assert a.owned == {topic_id("other"): frozenset([0, 1, 2])}


def test_most_members_decide_on_the_assignor() -> None:
    world = ConsumerWorld({"topic": 2, "other": 2})
    both = ["topic", "other"]
    a, b = Consumer(world, "a", both, assignor="range"), Consumer(world, "b", both, assignor="range")
    settle(a, b)
    assert a.owned == {TOPIC: frozenset([0]), topic_id("other"): frozenset([0])}
    state = world.consumers
    assert state is not None
    assert state.assignor("uniform") == "range"


def test_a_restart_rebuilds_the_same_group() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    a.beat()
    before = world.shard.hard
    world.restart()
    assert world.shard.hard == before
    settle(a, b)
    assert (a.partitions, b.partitions, world.state) == ([0, 1], [2, 3], ConsumerGroupStatus.STABLE)


def test_after_a_restart_members_get_a_session_to_show_up_and_a_rebalance_to_give_back() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    b = Consumer(world, "b")
    world.beat("a", 1)
    world.advance(40_000)
    world.restart()
    for _ in range(6):
        world.advance(10_000)
        b.beat()
    assert b.partitions == [0, 1, 2, 3]
    assert a.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_carry_the_epoch_of_the_member() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    assert world.commit(5, member_id="a", generation=2) == {}
    for member_id, epoch, version, code in [
        ("a", 1, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 3, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("x", 2, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(Refusal) as refused:
            world.commit(6, member_id=member_id, generation=epoch, version=version)
        assert refused.value.code == code
    world.beat("a", -1)
    world.beat("b", -1)
    assert world.commit(7) == {}
    assert world.offset() == 7


def test_fetches_of_offsets_may_carry_the_epoch_too() -> None:
    world = ConsumerWorld()
    Consumer(world, "a")
    world.shard.offsets.check_fetch(GROUP, None, -1)
    world.shard.offsets.check_fetch(GROUP, "a", 1)
    for member_id, epoch, code in [
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        with pytest.raises(Refusal) as refused:
            world.shard.offsets.check_fetch(GROUP, member_id, epoch)
        assert refused.value.code == code
    world.shard.offsets.check_fetch("no such group", "a", 1)


def test_only_an_empty_group_is_deleted_and_its_offsets_with_it() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    world.commit(5, member_id="a", generation=1)
    with pytest.raises(Refusal) as refused:
        world.shard.delete(GROUP)
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
    world.beat(a.member_id, -1)
    world.append(world.shard.delete(GROUP))
    assert GROUP not in world.shard.hard
    assert list(world.shard.list_groups()) == []


def test_offsets_of_topics_that_are_read_are_neither_deleted_nor_expired() -> None:
    world = ConsumerWorld({"topic": 1, "old": 1})
    Consumer(world, "a")
    for topic in ("topic", "old"):
        world.commit(5, topic=topic, member_id="a", generation=1)
    records, refused = world.shard.offsets.delete(GROUP, [("topic", 0), ("old", 0)])
    assert (len(records), refused) == (1, {("topic", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
    world.elapsed_ms += 8 * 24 * 3_600_000
    world.append(world.shard.offsets.expire(GROUP, world.now))
    assert (world.offset("topic"), world.offset("old")) == (5, None)
    world.beat("a", -1)
    world.append(world.shard.offsets.expire(GROUP, world.now))
    assert GROUP not in world.shard.hard


def test_it_is_listed_as_a_consumer_group() -> None:
    world = ConsumerWorld()
    Consumer(world, "a")
    (listed,) = world.shard.list_groups()
    assert (listed.type, listed.protocol_type, listed.state) == ("consumer", "consumer", ConsumerGroupStatus.STABLE)
    assert world.shard.describe(GROUP) is None


def test_a_refused_append_leaves_the_group_as_the_log_has_it() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    kept = world.shard.hard.consumer_groups[GROUP].copy()
    world.apply = lambda result: None  # type: ignore[method-assign]
    world.join_consumer("b")
    del world.apply
    pending_responses, result = world.shard.abandon(GROUP, world.now)
    world.apply(result)
    assert pending_responses == []
    assert world.shard.hard.consumer_groups[GROUP] == kept
    assert a.beat().error_code == 0


def test_many_members_share_many_partitions_evenly() -> None:
    world = ConsumerWorld({"topic": 1000})
    members = [Consumer(world, f"m{index:04}") for index in range(60)]
    settle(*members)
    assert sorted(index for member in members for index in member.partitions) == list(range(1000))
    assert {len(member.partitions) for member in members} == {16, 17}
