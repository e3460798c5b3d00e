"""Plans an offset reset: the new offset of each partition, clamped to its log. Never commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from kbroker.cli.output import pluralize
from kbroker.client.admin.groups import describe_group
from kbroker.client.cluster import Cluster
from kbroker.client.failures import NoSuchGroup
from kbroker.client.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    CommittedOffsets,
    GroupOffset,
    group_offsets,
    list_offsets,
)
from kbroker.errors import UserError

__all__ = [
    "OffsetChange",
    "ResetTarget",
    "TargetKind",
    "TopicSelection",
    "new_offsets",
    "plan_changes",
    "require_no_members",
]

NO_MEMBERS: Final = ("Empty", "Dead")


class TargetKind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIMESTAMP = auto()
    SHIFT = auto()
    FROM_FILE = auto()


class ResetTarget(NamedTuple):
    kind: TargetKind
    number: int = 0
    """OFFSET: the offset; TIMESTAMP: milliseconds since 1970; SHIFT: the number of offsets."""
    offsets: CommittedOffsets = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    """FROM_FILE: the new offsets."""


class TopicSelection(NamedTuple):
    name: str
    partitions: tuple[int, ...] = ()
    """Empty: all partitions."""


class OffsetChange(NamedTuple):
    topic: str
    partition: int
    current: int | None
    requested: int
    new: GroupOffset
    """`requested`, clamped to the range of the log."""
    log_end_offset: int

    @property
    def lag(self) -> int:
        return self.log_end_offset - self.new.offset


def new_offsets(changes: Iterable[OffsetChange]) -> dict[str, dict[int, GroupOffset]]:
    offsets: dict[str, dict[int, GroupOffset]] = {}
    for change in changes:
        offsets.setdefault(change.topic, {})[change.partition] = change.new
    return offsets


async def plan_changes(
    cluster: Cluster, group: str, target: ResetTarget, selections: Sequence[TopicSelection]
) -> list[OffsetChange]:
    """Plans the reset of the selected topics; without a selection, of all topics in the file or of the group."""
    current = await group_offsets(cluster, group)
    known = target.offsets if target.kind is TargetKind.FROM_FILE else current
    if not known and not selections:
        raise UserError("The file has no offsets for the group") if known is target.offsets else NoSuchGroup(group)
    changes: list[OffsetChange] = []
    for name, partitions in (await _selected_partitions(cluster, target, known, selections)).items():
        changes += await _plan_topic(cluster, group, name, partitions, target, current.get(name, {}))
    return changes


async def _selected_partitions(
    cluster: Cluster, target: ResetTarget, known: CommittedOffsets, selections: Sequence[TopicSelection]
) -> dict[str, list[int]]:
    if not selections:
        return {name: sorted(partitions) for name, partitions in sorted(known.items())}
    selected: dict[str, list[int]] = {}
    for selection in selections:
        if target.kind is TargetKind.FROM_FILE:
            available = sorted(known.get(selection.name, ()))
            missing = sorted(set(selection.partitions) - set(available))
            if missing or not available:
                raise UserError(f"The file has no offset for {selection.name} {','.join(map(str, missing))}".rstrip())
        else:
            available = [partition.number for partition in (await cluster.topic(selection.name)).partitions]
        selected.setdefault(selection.name, []).extend(selection.partitions or available)
    return {name: sorted(set(partitions)) for name, partitions in selected.items()}


async def _plan_topic(
    cluster: Cluster,
    group: str,
    name: str,
    partitions: Sequence[int],
    target: ResetTarget,
    current: Mapping[int, GroupOffset],
) -> list[OffsetChange]:
    topic = await cluster.topic(name)
    numbers = [topic.partition(number).number for number in partitions]

    async def offsets_at(timestamp: int) -> dict[int, int]:
        found = await list_offsets(cluster, name, dict.fromkeys(numbers, timestamp))
        return {number: listed.offset for number, listed in found.items()}

    earliest, latest = await offsets_at(EARLIEST), await offsets_at(LATEST)
    by_timestamp = await offsets_at(target.number) if target.kind is TargetKind.TIMESTAMP else {}
    changes = []
    for number in numbers:
        committed = current.get(number)
        requested = GroupOffset(earliest[number])
        match target.kind:
            case TargetKind.LATEST:
                requested = GroupOffset(latest[number])
            case TargetKind.OFFSET:
                requested = GroupOffset(target.number)
            case TargetKind.TIMESTAMP:
                requested = GroupOffset(latest[number] if by_timestamp[number] == NO_OFFSET else by_timestamp[number])
            case TargetKind.SHIFT:
                if committed is None:
                    raise UserError(
                        f"Group '{group}' has no committed offset for {name}-{number}. Use --to instead of --shift-by."
                    )
                requested = GroupOffset(committed.offset + target.number)
            case TargetKind.FROM_FILE:
                requested = target.offsets[name][number]
        in_range = min(max(requested.offset, earliest[number]), latest[number])
        changes.append(
            OffsetChange(
                name,
                number,
                None if committed is None else committed.offset,
                requested.offset,
                requested._replace(offset=in_range),
                latest[number],
            )
        )
    return changes


async def require_no_members(cluster: Cluster, group: str) -> None:
    """Raises UserError if the group has members: the broker accepts commits only from them. A new group has none."""
    try:
        described = await describe_group(cluster, group)
    except NoSuchGroup:
        return
    if described.members or described.state not in NO_MEMBERS:
        members = pluralize(len(described.members), "member")
        raise UserError(
            f"Group '{group}' has {members} (state {described.state}). Stop all members first; "
            f"run 'kbroker groups describe {group}' to see them."
        )
