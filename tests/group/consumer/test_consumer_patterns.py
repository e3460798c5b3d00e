"""Subscriptions by regular expression, in RE2's syntax."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from kbroker.group.consumer.consumer_records import Assignment
from kbroker.group.consumer.patterns import InvalidPattern, compile_pattern, matching_topics
from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import Consumer, ConsumerWorld, set_topics, settle, topic_id
from tests.group.world import GROUP

MANY = {f"topic-{index}": 1 for index in range(600)}


def owned(member: Consumer) -> set[bytes]:
    return set(member.owned)


def test_a_member_gets_the_topics_whose_whole_name_matches() -> None:
    world = ConsumerWorld({"orders": 1, "orders-eu": 1, "new-orders": 1})
    a = Consumer(world, "a", None, regex="orders.*")
    assert owned(a) == {topic_id("orders"), topic_id("orders-eu")}


def test_names_and_a_pattern_add_up() -> None:
    world = ConsumerWorld({"orders": 1, "payments": 1, "other": 1})
    a = Consumer(world, "a", ["payments"], regex="ord.*")
    assert owned(a) == {topic_id("orders"), topic_id("payments")}


@pytest.mark.parametrize("regex", ["(orders", "[", "(?=orders)", r"(a)\1", "*"])
def test_what_is_not_of_re2_is_refused_and_nothing_happens(regex: str) -> None:
    world = ConsumerWorld()
    assert world.join_consumer("a", None, regex=regex) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert GROUP not in world.shard.hard
    a = Consumer(world, "a")
    assert a.beat(regex=regex) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert a.beat().error_code == 0


def test_an_empty_pattern_matches_nothing() -> None:
    a = Consumer(ConsumerWorld(), "a", None, regex="")
    assert (a.epoch, owned(a)) == (1, set())


def test_a_new_topic_that_matches_is_assigned_and_a_deleted_one_taken_away() -> None:
    world = ConsumerWorld({"orders-1": 1})
    a = Consumer(world, "a", None, regex="orders-.")
    set_topics(world.topics, {"orders-1": 1, "orders-2": 1, "other": 1})
    a.beat()
    assert owned(a) == {topic_id("orders-1"), topic_id("orders-2", 1)}
    set_topics(world.topics, {"orders-2": 1, "other": 1})
    settle(a)
    assert owned(a) == {topic_id("orders-2", 1)}


def test_a_pattern_that_nobody_has_any_more_is_forgotten() -> None:
    world = ConsumerWorld({"orders": 2})
    a, b = Consumer(world, "a", None, regex="o.*"), Consumer(world, "b", None, regex="o.*")
    state = world.consumers
    assert state is not None
    assert set(state.patterns) == {"o.*"}
    a.beat(regex="ord.*")
    assert set(state.patterns) == {"o.*", "ord.*"}
    world.beat("b", -1)
    assert set(state.patterns) == {"ord.*"}
    assert b.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_client_gets_no_topics_that_it_may_not_know_of() -> None:
    world = ConsumerWorld({"orders": 1, "orders-secret": 1})
    a = Consumer(world, "a", None, regex="orders.*", may_see=lambda name: "secret" not in name)
    assert owned(a) == {topic_id("orders")}


def test_too_many_topics_are_matched_later() -> None:
    world = ConsumerWorld(MANY)
    a = Consumer(world, "a", None, regex="topic-1.")
    wanted = world.last_result.patterns
    assert wanted is not None
    assert (wanted.group_id, wanted.regexes, owned(a)) == (GROUP, ("topic-1.",), set())
    a.beat()
    assert world.last_result.patterns is None
    found = frozenset(name for piece in matching_topics("topic-1.", list(MANY)) for name in piece)
    world.apply(world.shard.consumer_patterns_matched(GROUP, {"topic-1.": found}, world.now))
    a.beat()
    assert owned(a) == {topic_id(f"topic-1{index}") for index in range(10)}


def test_a_result_that_comes_too_late_is_dropped() -> None:
    world = ConsumerWorld(MANY)
    a = Consumer(world, "a", None, regex="topic-1.")
    a.beat(regex="", topics=["topic-7"])
    world.apply(world.shard.consumer_patterns_matched(GROUP, {"topic-1.": frozenset(["topic-10"])}, world.now))
    settle(a)
    assert owned(a) == {topic_id("topic-7")}
    world.apply(world.shard.consumer_patterns_matched("no such group", {"x": frozenset()}, world.now))


def test_a_restart_keeps_what_was_matched() -> None:
    world = ConsumerWorld({"orders": 2})
    a = Consumer(world, "a", None, regex="o.*")
    before = world.shard.hard
    world.restart()
    assert world.shard.hard == before
    a.beat()
    assert (a.epoch, owned(a)) == (1, {topic_id("orders")})


def test_a_pattern_takes_no_longer_for_being_wicked() -> None:
    """The same one keeps a backtracking matcher busy for years."""
    assert not compile_pattern("(a*)*b")("a" * 5000)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidPattern, match="missing"):
        compile_pattern("(a")


def test_the_package_is_not_imported_before_it_is_needed() -> None:
    check = "import sys, kbroker.coordinator.group_coordinator; sys.exit('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_group_with_many_patterns_is_assigned_in_the_background_in_small_steps() -> None:
    world = ConsumerWorld({f"topic-{number}": 1 for number in range(50)})
    unassigned = 0
    for number in range(50):
        world.join_consumer(f"m{number}", None, regex=f"topic-{number}|other-{number}")
        unassigned += world.last_result.unassigned is not None
    assert unassigned == 1  # one computation at a time
    while (begun := world.shard.begin_assignment(GROUP)) is not None:
        epoch, steps = begun
        targets, count = run_and_count(steps)
        assert count > 100  # several steps for each member and topic
        result = world.shard.consumers_assigned(GROUP, targets, epoch)
        world.apply(result)
        if result.unassigned is None:
            break
    state = world.consumers
    assert state is not None
    assert state.target_epoch == state.epoch
    for number in range(50):
        assert state.target(f"m{number}") == {world.topics.image.topics[f"topic-{number}"].id: frozenset({0})}


def test_members_that_join_or_leave_during_a_computation_get_their_targets_from_the_next_one() -> None:
    world = ConsumerWorld({f"topic-{number}": 1 for number in range(50)})
    for number in range(40):
        world.join_consumer(f"m{number}", None, regex=f"topic-{number}|other-{number}")
    begun = world.shard.begin_assignment(GROUP)
    assert begun is not None
    epoch, steps = begun
    targets, _count = run_and_count(steps)
    world.join_consumer("late", None, regex="topic-49|other")
    world.beat("m0", -1)
    result = world.shard.consumers_assigned(GROUP, targets, epoch)
    world.apply(result)
    state = world.consumers
    assert state is not None
    assert "m0" not in state.targets
    assert state.target_epoch == epoch < state.epoch
    assert result.unassigned == GROUP
    begun = world.shard.begin_assignment(GROUP)
    assert begun is not None
    targets, _count = run_and_count(begun[1])
    world.apply(world.shard.consumers_assigned(GROUP, targets, begun[0]))
    state = world.consumers
    assert state is not None
    assert state.target("late") == {world.topics.image.topics["topic-49"].id: frozenset({0})}


def run_and_count(steps: Generator[None, None, dict[str, Assignment]]) -> tuple[dict[str, Assignment], int]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1
