"""The assignors of the consumer protocol, `uniform` and `range`: assign partitions to the members of a group. Pure.

uniform  the numbers of partitions differ by at most one, and members keep their partitions as far as that allows.
         Members with different subscriptions: as even as moves of single partitions can make it.
range    each member gets a contiguous range of each topic, in the order of the members. Topics with equal partition
         counts are split alike, so that they can be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from kbroker.group.consumer.consumer_records import Assignment

__all__ = [
    "ASSIGNORS",
    "Assignor",
    "Subscriber",
    "assign_range",
    "assign_uniform",
    "known_assignors",
    "run_to_end",
]

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Long work that can pause at each yield, and its result."""


class Subscriber(NamedTuple):
    topic_ids: frozenset[bytes]
    """The subscribed topics that exist."""
    target: Assignment
    """The member's target until now."""
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Steps[dict[str, Assignment]]]
"""Members by id, and partition counts by topic id -> the assignment of each member."""

_Partition = tuple[bytes, int]


def run_to_end(steps: Steps[T]) -> T:
    """Returns the result of the work, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def assign_uniform(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> Steps[dict[str, Assignment]]:
    if len({member.topic_ids for member in members.values()}) <= 1:
        return _uniform_homogeneous(members, counts)
    return (yield from _uniform_heterogeneous(members, counts))


def _uniform_homogeneous(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Assigns by counting alone: all members have the same subscription, so any member may get any partition."""
    if not members:
        return {}
    topic_ids = next(iter(members.values())).topic_ids
    free = {topic_id: set(range(counts[topic_id])) for topic_id in topic_ids}
    share, extra = divmod(sum(map(len, free.values())), len(members))
    result: dict[str, Assignment] = {}
    missing: dict[str, int] = {}  # number of partitions that the member needs beside those it keeps
    for member_id, member in members.items():
        kept, size = member.target, 0
        for topic_id, partitions in kept.items():
            if topic_id not in free or not partitions <= free[topic_id]:
                kept, size = _still_free(kept, free)
                break
            size += len(partitions)
        if size > share and extra:
            extra -= 1
            limit = share + 1
        else:
            limit = share
        if size > limit:
            kept, size = _first(kept, limit), limit
        for topic_id, partitions in kept.items():
            free[topic_id] -= partitions
        result[member_id] = kept
        # A member with more than its share has one of the extra partitions already.
        if size <= share:
            missing[member_id] = share - size
    spare = [(topic_id, index) for topic_id in sorted(free, reverse=True) for index in sorted(free[topic_id])[::-1]]
    for member_id, count in missing.items():
        if extra:
            extra, count = extra - 1, count + 1
        if count:
            result[member_id] = _with(result[member_id], [spare.pop() for _ in range(count)])
    return result


def _still_free(target: Assignment, free: Mapping[bytes, set[int]]) -> tuple[Assignment, int]:
    """Returns the partitions of a target that exist and that no other member has kept, and their number."""
    kept = {topic_id: partitions & free[topic_id] for topic_id, partitions in target.items() if topic_id in free}
    kept = {topic_id: partitions for topic_id, partitions in kept.items() if partitions}
    return kept, sum(map(len, kept.values()))


def _first(assignment: Assignment, count: int) -> Assignment:
    flat = [(topic_id, index) for topic_id in sorted(assignment) for index in sorted(assignment[topic_id])]
    return _with({}, flat[:count])


def _with(assignment: Assignment, more: Iterable[_Partition]) -> Assignment:
    found = {topic_id: set(partitions) for topic_id, partitions in assignment.items()}
    for topic_id, index in more:
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}


def _uniform_heterogeneous(
    members: Mapping[str, Subscriber], counts: Mapping[bytes, int]
) -> Steps[dict[str, Assignment]]:
    readers: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            readers.setdefault(topic_id, []).append(member_id)
        yield
    load = dict.fromkeys(members, 0)
    owned: dict[bytes, dict[int, str]] = {topic_id: {} for topic_id in readers}
    for member_id, member in members.items():
        for topic_id in member.topic_ids & member.target.keys():
            owners, count = owned[topic_id], counts[topic_id]
            for index in member.target[topic_id]:
                if index < count and index not in owners:
                    owners[index] = member_id
                    load[member_id] += 1
        yield
    # Topics with few readers first: topics with more readers can still even out the load.
    order = sorted(readers, key=lambda topic_id: (len(readers[topic_id]), topic_id))
    for topic_id in order:
        owners, candidates = owned[topic_id], readers[topic_id]
        for index in range(counts[topic_id]):
            if index not in owners:
                member_id = owners[index] = min(candidates, key=load.__getitem__)
                load[member_id] += 1
                yield
    is_even = False
    while not is_even:
        is_even = True
        for topic_id in order:
            is_even &= not _even_out(owned[topic_id], readers[topic_id], load)
            yield
    partitions: dict[str, list[_Partition]] = {member_id: [] for member_id in members}
    for topic_id, owners in owned.items():
        for index, member_id in owners.items():
            partitions[member_id].append((topic_id, index))
        yield
    result: dict[str, Assignment] = {}
    for member_id in members:
        result[member_id] = _with({}, partitions[member_id])
        yield
    return result


def _even_out(owners: dict[int, str], readers: list[str], load: dict[str, int]) -> bool:
    """Moves partitions of one topic from the most to the least loaded members. Returns whether any was moved.

    Terminates because each move makes the load more even.
    """
    has_moved = False
    by_owner: dict[str, list[int]] = {}
    for index, member_id in sorted(owners.items()):
        by_owner.setdefault(member_id, []).append(index)
    while by_owner:
        source = max(by_owner, key=load.__getitem__)
        destination = min(readers, key=load.__getitem__)
        if load[source] - load[destination] < 2:
            break
        index = by_owner[source].pop()
        if not by_owner[source]:
            del by_owner[source]
        by_owner.setdefault(destination, []).append(index)
        owners[index] = destination
        load[source] -= 1
        load[destination] += 1
        has_moved = True
    return has_moved


def assign_range(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> Steps[dict[str, Assignment]]:
    result: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    # Static members first, by instance id: a restart changes their member id, but must not change their range.
    order = sorted(members, key=lambda member_id: _sort_key(member_id, members[member_id]))
    topic_ids = {topic_id for member in members.values() for topic_id in member.topic_ids}
    for topic_id in topic_ids:
        readers = [member_id for member_id in order if topic_id in members[member_id].topic_ids]
        share, extra = divmod(counts[topic_id], len(readers))
        start = 0
        for position, member_id in enumerate(readers):
            end = start + share + (position < extra)
            if end > start:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
        yield
    return {
        member_id: member.target if member.target == result[member_id] else result[member_id]
        for member_id, member in members.items()
    }


def _sort_key(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return (True, member_id) if member.instance_id is None else (False, member.instance_id)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def known_assignors(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the supported assignors of `group.consumer.assignors`, or all supported ones if it names none.

    Java class names are accepted: `org.apache.kafka.coordinator.group.assignor.RangeAssignor` is `range`.
    """
    short_names = (name.rpartition(".")[2].removesuffix("Assignor").lower() for name in names)
    return tuple(dict.fromkeys(name for name in short_names if name in ASSIGNORS)) or tuple(ASSIGNORS)
