"""Which member of a consumer group shall have which partitions: `uniform` and `range`, decided by the broker. Pure.

uniform  everybody gets as many as everybody else, give or take one, and keeps what it had wherever that allows it.
         Members with different subscriptions: as even as moving one partition at a time can make it.
range    for each topic a run of neighbours each, in the order of the members, so that topics with as many partitions
         are split alike and can be joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.group.consumer_records import Assignment

__all__ = ["ASSIGNORS", "Assignor", "Subscriber", "assign_range", "assign_uniform", "known_assignors"]


class Subscriber(NamedTuple):
    topic_ids: frozenset[bytes]
    """Those that exist."""
    target: Assignment
    """What it was to have until now."""
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
"""Members by id and the number of partitions of every topic -> an assignment for each member."""

_Partition = tuple[bytes, int]


def assign_uniform(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    if len({each.topic_ids for each in members.values()}) <= 1:
        return _uniform_for_all(members, counts)
    return _uniform_for_each(members, counts)


def _uniform_for_all(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Everybody reads the same topics, so partitions are alike: it is enough to count."""
    if not members:
        return {}
    topic_ids = next(iter(members.values())).topic_ids
    free = {topic_id: set(range(counts[topic_id])) for topic_id in topic_ids}
    share, extra = divmod(sum(map(len, free.values())), len(members))
    result: dict[str, Assignment] = {}
    room: dict[str, int] = {}  # how many more than what it keeps
    for member_id, member in members.items():
        kept, size = member.target, 0
        for topic_id, partitions in kept.items():
            if topic_id not in free or not partitions <= free[topic_id]:
                kept, size = _still_free(kept, free)
                break
            size += len(partitions)
        if size > share and extra:
            extra -= 1
            most = share + 1
        else:
            most = share
        if size > most:
            kept, size = _first(kept, most), most
        for topic_id, partitions in kept.items():
            free[topic_id] -= partitions
        result[member_id] = kept
        # Who has more than its share has taken one of the extra ones already.
        if size <= share:
            room[member_id] = share - size
    spare = [(topic_id, index) for topic_id in sorted(free, reverse=True) for index in sorted(free[topic_id])[::-1]]
    for member_id, count in room.items():
        if extra:
            extra, count = extra - 1, count + 1
        if count:
            result[member_id] = _with(result[member_id], [spare.pop() for _ in range(count)])
    return result


def _still_free(target: Assignment, free: Mapping[bytes, set[int]]) -> tuple[Assignment, int]:
    """What of it exists and nobody else has kept, and how much that is."""
    kept = {each: partitions & free[each] for each, partitions in target.items() if each in free}
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


def _uniform_for_each(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    readers: dict[bytes, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topic_ids:
            readers.setdefault(topic_id, []).append(member_id)
    load = dict.fromkeys(members, 0)
    owned: dict[bytes, dict[int, str]] = {topic_id: {} for topic_id in readers}
    for member_id, member in members.items():
        for topic_id in member.topic_ids & member.target.keys():
            owners, count = owned[topic_id], counts[topic_id]
            for index in member.target[topic_id]:
                if index < count and index not in owners:
                    owners[index] = member_id
                    load[member_id] += 1
    # Topics with few readers first: the others can still make up for them.
    order = sorted(readers, key=lambda each: (len(readers[each]), each))
    for topic_id in order:
        owners, candidates = owned[topic_id], readers[topic_id]
        for index in range(counts[topic_id]):
            if index not in owners:
                member_id = owners[index] = min(candidates, key=load.__getitem__)
                load[member_id] += 1
    is_even = False
    while not is_even:
        moves = [_even_out(owned[topic_id], readers[topic_id], load) for topic_id in order]
        is_even = not any(moves)
    result: dict[str, list[_Partition]] = {member_id: [] for member_id in members}
    for topic_id, owners in owned.items():
        for index, member_id in owners.items():
            result[member_id].append((topic_id, index))
    return {member_id: _with({}, partitions) for member_id, partitions in result.items()}


def _even_out(owners: dict[int, str], readers: list[str], load: dict[str, int]) -> bool:
    """Moves partitions of one topic from who has most to who has least. Each move makes it more even, so it ends."""
    has_moved = False
    by_owner: dict[str, list[int]] = {}
    for index, member_id in sorted(owners.items()):
        by_owner.setdefault(member_id, []).append(index)
    while by_owner:
        giver = max(by_owner, key=load.__getitem__)
        taker = min(readers, key=load.__getitem__)
        if load[giver] - load[taker] < 2:
            break
        index = by_owner[giver].pop()
        if not by_owner[giver]:
            del by_owner[giver]
        by_owner.setdefault(taker, []).append(index)
        owners[index] = taker
        load[giver] -= 1
        load[taker] += 1
        has_moved = True
    return has_moved


def assign_range(members: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    result: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    # Static members come first, in the order of their names: a restart changes their id, not their range.
    order = sorted(members, key=lambda each: _place(each, members[each]))
    topic_ids = {topic_id for each in members.values() for topic_id in each.topic_ids}
    for topic_id in topic_ids:
        readers = [each for each in order if topic_id in members[each].topic_ids]
        share, extra = divmod(counts[topic_id], len(readers))
        start = 0
        for place, member_id in enumerate(readers):
            end = start + share + (place < extra)
            if end > start:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return {
        member_id: member.target if member.target == result[member_id] else result[member_id]
        for member_id, member in members.items()
    }


def _place(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return (True, member_id) if member.instance_id is None else (False, member.instance_id)


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def known_assignors(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `group.consumer.assignors` that there are here; a Java class is known by the assignor in its name."""
    shorts = (each.rpartition(".")[2].removesuffix("Assignor").lower() for each in names)
    return tuple(dict.fromkeys(each for each in shorts if each in ASSIGNORS)) or tuple(ASSIGNORS)
