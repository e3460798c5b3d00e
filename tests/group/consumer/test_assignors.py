"""Assignments by the broker: whole, balanced, and as few moves as that allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.group.consumer import assignors
from kbroker.group.consumer.assignors import Subscriber, known_assignors, run_to_end
from kbroker.group.consumer.consumer_records import Assignment

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
TOPICS = (A, B, C)


def assign_uniform(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    return run_to_end(assignors.assign_uniform(members, counts))


def assign_range(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    return run_to_end(assignors.assign_range(members, counts))


Assign = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
ASSIGNORS = {"uniform": assign_uniform, "range": assign_range}


def subscribed(*topic_ids: bytes, target: Assignment | None = None, instance_id: str | None = None) -> Subscriber:
    return Subscriber(frozenset(topic_ids), target or {}, instance_id)


def again(members: Mapping[str, Subscriber], assigned: Mapping[str, Assignment]) -> dict[str, Subscriber]:
    return {member: members[member]._replace(target=assigned[member]) for member in members}


def owners(assigned: Mapping[str, Assignment]) -> dict[tuple[bytes, int], list[str]]:
    found: dict[tuple[bytes, int], list[str]] = {}
    for member_id, assignment in assigned.items():
        for topic_id, partitions in assignment.items():
            assert partitions, "an empty set"
            for index in partitions:
                found.setdefault((topic_id, index), []).append(member_id)
    return found


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


counts = st.fixed_dictionaries({topic_id: st.integers(1, 9) for topic_id in TOPICS})
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), max_size=7)


def check(members: Mapping[str, Subscriber], counts: Mapping[bytes, int], assigned: Mapping[str, Assignment]) -> None:
    assert set(assigned) == set(members)
    found = owners(assigned)
    read = {topic_id for member in members.values() for topic_id in member.topic_ids}
    assert set(found) == {(topic_id, index) for topic_id in read for index in range(counts[topic_id])}
    for (topic_id, _), holders in found.items():
        assert len(holders) == 1
        assert topic_id in members[holders[0]].topic_ids


@given(counts, subscriptions, subscriptions, st.sampled_from(list(ASSIGNORS.values())))
def test_each_partition_has_one_owner_that_reads_its_topic(
    counts: dict[bytes, int],
    first: list[frozenset[bytes]],
    second: list[frozenset[bytes]],
    assignor: Assign,
) -> None:
    before = {f"m{index}": Subscriber(topics, {}) for index, topics in enumerate(first)}
    assigned = assignor(before, counts)
    check(before, counts, assigned)
    after = {
        f"m{index + 2}": Subscriber(topics, assigned.get(f"m{index + 2}", {})) for index, topics in enumerate(second)
    }
    check(after, counts, assignor(after, counts))


@given(counts, subscriptions, st.sampled_from(list(ASSIGNORS.values())))
def test_what_need_not_move_stays(
    counts: dict[bytes, int],
    subscribed: list[frozenset[bytes]],
    assignor: Assign,
) -> None:
    members = {f"m{index}": Subscriber(topics, {}) for index, topics in enumerate(subscribed)}
    assigned = assignor(members, counts)
    assert assignor(again(members, assigned), counts) == assigned


@given(counts, st.integers(1, 12), st.integers(0, 12))
def test_uniform_gives_everybody_the_same_give_or_take_one_and_moves_no_more_than_it_must(
    counts: dict[bytes, int], before: int, after: int
) -> None:
    total = sum(counts.values())
    members = {f"m{index}": subscribed(*TOPICS) for index in range(before)}
    assigned = assign_uniform(members, counts)
    kept = {f"m{index}": Subscriber(frozenset(TOPICS), assigned.get(f"m{index}", {})) for index in range(after)}
    moved = assign_uniform(kept, counts)
    sizes = sorted(map(size, moved.values()))
    assert not sizes or sizes[-1] - sizes[0] <= 1
    had, has = owners(assigned), owners(moved)
    stayed = sum(1 for partition in has if had.get(partition) == has[partition])
    if after:
        low, extra = divmod(total, after)
        room = sorted((size(assigned.get(f"m{index}", {})) for index in range(after)), reverse=True)
        assert stayed == sum(min(have, low + (place < extra)) for place, have in enumerate(room))


def test_uniform_evens_out_what_different_subscriptions_allow() -> None:
    members = {"a": subscribed(A), "b": subscribed(A, B), "c": subscribed(B)}
    assigned = assign_uniform(members, {A: 6, B: 3})
    assert sorted(map(size, assigned.values())) == [3, 3, 3]


def test_uniform_lets_a_new_member_with_another_subscription_take_its_part_only() -> None:
    members = {"a": subscribed(A, B), "b": subscribed(A, B)}
    counts = {A: 4, B: 4}
    members = again(members, assign_uniform(members, counts)) | {"c": subscribed(B)}
    assigned = assign_uniform(members, counts)
    assert sorted(map(size, assigned.values())) == [2, 3, 3]
    assert set(assigned["c"]) == {B}
    moves = sum(size(members[member_id].target) for member_id in "ab") - sum(
        len(assigned[member_id].get(topic_id, frozenset()) & partitions)
        for member_id in "ab"
        for topic_id, partitions in members[member_id].target.items()
    )
    assert moves == 3  # two for the new one, and one that makes up for them


def test_range_gives_neighbours_and_splits_topics_alike() -> None:
    members = {member_id: subscribed(A, B) for member_id in ("c", "a", "b")}
    assigned = assign_range(members, {A: 7, B: 7})
    for topic_id in (A, B):
        found = [sorted(assigned[member_id][topic_id]) for member_id in "abc"]
        assert found == [[0, 1, 2], [3, 4], [5, 6]]


def test_range_orders_static_members_by_their_instances_so_that_a_new_id_changes_nothing() -> None:
    before = {"x": subscribed(A, instance_id="1"), "y": subscribed(A, instance_id="2"), "a": subscribed(A)}
    after = {"z": subscribed(A, instance_id="1"), "y": subscribed(A, instance_id="2"), "a": subscribed(A)}
    first, second = assign_range(before, {A: 3}), assign_range(after, {A: 3})
    assert (first["x"], first["y"], first["a"]) == (second["z"], second["y"], second["a"])
    assert first["x"] == {A: frozenset([0])}


def test_more_members_than_partitions_leaves_some_without() -> None:
    members = {f"m{index}": subscribed(A) for index in range(5)}
    for assignor in ASSIGNORS.values():
        assert sorted(map(size, assignor(members, {A: 3}).values())) == [0, 0, 1, 1, 1]


def test_a_partition_that_two_members_were_to_have_goes_to_one() -> None:
    members = {member_id: subscribed(A, target={A: frozenset([0])}) for member_id in "ab"}
    check(members, {A: 1}, assign_uniform(members, {A: 1}))
    different = {"a": members["a"], "b": members["b"]._replace(topic_ids=frozenset([A, B]))}
    check(different, {A: 1, B: 1}, assign_uniform(different, {A: 1, B: 1}))


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("range",), ("range",)),
        (("org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform"), ("range", "uniform")),
        (("com.example.Mine",), ("uniform", "range")),
        ((), ("uniform", "range")),
    ],
)
def test_assignors_are_known_by_name_or_class(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    assert known_assignors(names) == known
