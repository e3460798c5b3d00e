"""Members that do what they should not: others, in the same group and elsewhere, are no worse off for it."""

from __future__ import annotations

from kbroker.group.classic.consumer_protocol_codec import encode_assignment, read_assignment
from kbroker.group.consumer.consumer_state import ConsumerGroupStatus
from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import Consumer, ConsumerWorld, settle, subscription, topic_id

TOPIC = topic_id("topic")
RANGE = [("range", subscription(["topic"]))]


def test_an_assignment_of_partitions_that_do_not_exist_is_the_members_business() -> None:
    """Until the broker has to understand it: then it counts for what exists."""
    world = ConsumerWorld()
    member_id, joined = world.join_new(protocols=RANGE)
    assigned = encode_assignment({"topic": [0, 99], "no such topic": [0]}, 1)
    answer = world.sync(member_id, joined.response.generation_id, {member_id: assigned})
    assert read_assignment(answer.response.assignment) == [("topic", [0, 99]), ("no such topic", [0])]
    world.join_consumer("new")
    state = world.consumers
    assert state is not None
    assert state.current(member_id).assigned == {TOPIC: frozenset([0])}


def test_an_assignment_to_a_stranger_is_dropped() -> None:
    world = ConsumerWorld()
    member_id, joined = world.join_new(protocols=RANGE)
    answer = world.sync(member_id, joined.response.generation_id, {"stranger": b"x", member_id: b"y"})
    assert answer.response.assignment == b"y"
    assert world.heartbeat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_consumer_that_claims_what_it_was_never_given_gets_nothing_by_it() -> None:
    world = ConsumerWorld()
    a, b = Consumer(world, "a"), Consumer(world, "b")
    settle(a, b)
    a.owned = {TOPIC: frozenset([0, 1, 2, 3, 99]), topic_id("secret"): frozenset([0])}
    assert a.beat().error_code == 0
    state = world.consumers
    assert state is not None
    assert state.owners[TOPIC, 2] == "b"
    assert len(state.owners) == 4


def test_a_consumer_that_joins_and_vanishes_holds_its_part_for_one_session_only() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    for index in range(20):
        world.join_consumer(f"vanished-{index}")
    world.advance(40_000)
    a.beat()
    world.advance(5_000)
    settle(a, rounds=2)
    assert (a.partitions, world.state) == ([0, 1, 2, 3], ConsumerGroupStatus.STABLE)


def test_one_group_does_not_disturb_another() -> None:
    world = ConsumerWorld()
    a = Consumer(world, "a")
    before = len(world.log)
    assert world.join_consumer("x", None, regex="(", group_id="other") == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.beat("a", 99) == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a", 5, group_id="other") == ErrorCode.GROUP_ID_NOT_FOUND
    world.join_new(group_id="other", protocol_type="connect")
    assert world.join_consumer("x", group_id="other") == ErrorCode.GROUP_ID_NOT_FOUND
    assert a.beat().error_code == 0
    assert {key[4:9] for key, _ in world.log[before:]} == {b"other"}


def test_a_pattern_that_matches_everything_gives_everything() -> None:
    world = ConsumerWorld({f"t{index}": 2 for index in range(50)})
    a = Consumer(world, "a", None, regex=".*")
    assert sum(map(len, a.owned.values())) == 100
