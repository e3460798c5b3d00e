"""Tests the values that a consumer group derives from its members and patterns."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kbroker.group.consumer.consumer_records import ConsumerMember, ResolvedPattern
from kbroker.group.consumer.consumer_state import ConsumerGroupState


def member(*topics: str, regex: str | None = None) -> ConsumerMember:
    return ConsumerMember(None, None, "client", "/host", topics, regex, 1000, None)


def test_the_subscribed_topics_are_those_of_all_members_and_of_patterns_in_use() -> None:
    chance = random.Random(3)
    state = ConsumerGroupState()
    topics, regexes, ids = [f"t{number}" for number in range(8)], ["a", "b", "c"], ["m1", "m2", "m3", "m4"]
    for _ in range(2000):
        some = tuple(sorted(chance.sample(topics, chance.randrange(4))))
        regex = chance.choice(regexes)
        if chance.random() < 0.4:
            state.set_pattern(regex, ResolvedPattern(frozenset(some), 1, 1) if chance.random() < 0.7 else None)
        elif chance.random() < 0.7:
            state.set_member(chance.choice(ids), member(*some, regex=regex if chance.random() < 0.7 else None))
        else:
            state.set_member(chance.choice(ids), None)
        expected = {topic for member in state.members.values() for topic in state.topics_of(member)}
        assert state.subscribed_topics() == expected
        assert state.copy() == state


class UncountedTopics(frozenset[str]):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the cost of a join must not depend on the patterns of other members")


def test_a_join_does_not_look_at_the_topics_of_other_patterns() -> None:
    state = ConsumerGroupState()
    for number in range(1500):
        state.patterns[f"p{number}"] = ResolvedPattern(UncountedTopics(["t"]), 1, 1)
        state.pattern_users[f"p{number}"] = 1
    draft = state.copy()
    draft.set_member("new", member("orders", regex="new"))
    draft.set_pattern("new", ResolvedPattern(frozenset(["payments"]), 1, 1))
    assert draft.subscribed_topics() == {"orders", "payments"}
