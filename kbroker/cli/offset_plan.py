"""Where a group would go on after a reset: for each partition, and inside its log. Commits nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from kbroker.cli.output import counted
from kbroker.client.cluster import Cluster
from kbroker.client.failures import NoSuchGroup
from kbroker.client.groups import describe_group
from kbroker.client.offsets import EARLIEST, LATEST, NO_OFFSET, CommittedOffset, GroupOffsets, group_offsets
from kbroker.client.offsets import list_offsets as ask_offsets
from kbroker.errors import UserError

__all__ = ["Change", "Kind", "Target", "TopicChoice", "offsets_of", "plan_changes", "refuse_members"]

NO_MEMBERS: Final = ("Empty", "Dead")


class Kind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    MOMENT = auto()
    SHIFT = auto()
    GIVEN = auto()


class Target(NamedTuple):
    kind: Kind
    number: int = 0
    """The offset, the milliseconds since 1970, or by how many to shift."""
    given: GroupOffsets = {}  # noqa: RUF012 - a NamedTuple's default, never changed


class TopicChoice(NamedTuple):
    name: str
    partitions: tuple[int, ...] = ()
    """None named: all."""


class Change(NamedTuple):
    topic: str
    partition: int
    current: int | None
    wanted: int
    """What was asked for; `new` is the nearest that the log has."""
    new: CommittedOffset
    log_end_offset: int

    @property
    def lag(self) -> int:
        return self.log_end_offset - self.new.offset


def offsets_of(changes: Iterable[Change]) -> dict[str, dict[int, CommittedOffset]]:
    offsets: dict[str, dict[int, CommittedOffset]] = {}
    for each in changes:
        offsets.setdefault(each.topic, {})[each.partition] = each.new
    return offsets


async def plan_changes(cluster: Cluster, group: str, target: Target, choices: Sequence[TopicChoice]) -> list[Change]:
    """For the topics chosen; without a choice, for all that the target names or else the group has offsets for."""
    current = await group_offsets(cluster, group)
    known = target.given if target.kind is Kind.GIVEN else current
    if not known and not choices:
        raise UserError("the file has no offsets for the group") if known is target.given else NoSuchGroup(group)
    changes: list[Change] = []
    for name, partitions in (await _chosen(cluster, target, known, choices)).items():
        changes += await _plan_topic(cluster, group, name, partitions, target, current.get(name, {}))
    return changes


async def _chosen(
    cluster: Cluster, target: Target, known: GroupOffsets, choices: Sequence[TopicChoice]
) -> dict[str, list[int]]:
    if not choices:
        return {name: sorted(partitions) for name, partitions in sorted(known.items())}
    chosen: dict[str, list[int]] = {}
    for choice in choices:
        if target.kind is Kind.GIVEN:
            everything = sorted(known.get(choice.name, ()))
            absent = sorted(set(choice.partitions) - set(everything))
            if absent or not everything:
                raise UserError(f"the file has no offset for {choice.name} {','.join(map(str, absent))}".rstrip())
        else:
            everything = [each.number for each in (await cluster.topic(choice.name)).partitions]
        chosen.setdefault(choice.name, []).extend(choice.partitions or everything)
    return {name: sorted(set(partitions)) for name, partitions in chosen.items()}


async def _plan_topic(
    cluster: Cluster,
    group: str,
    name: str,
    partitions: Sequence[int],
    target: Target,
    current: Mapping[int, CommittedOffset],
) -> list[Change]:
    topic = await cluster.topic(name)
    numbers = [topic.partition(number).number for number in partitions]

    async def ask(timestamp: int) -> dict[int, int]:
        found = await ask_offsets(cluster, name, dict.fromkeys(numbers, timestamp))
        return {number: each.offset for number, each in found.items()}

    earliest, latest = await ask(EARLIEST), await ask(LATEST)
    young = await ask(target.number) if target.kind is Kind.MOMENT else {}
    changes = []
    for number in numbers:
        known = current.get(number)
        wanted = CommittedOffset(earliest[number])
        match target.kind:
            case Kind.LATEST:
                wanted = CommittedOffset(latest[number])
            case Kind.OFFSET:
                wanted = CommittedOffset(target.number)
            case Kind.MOMENT:
                wanted = CommittedOffset(latest[number] if young[number] == NO_OFFSET else young[number])
            case Kind.SHIFT:
                if known is None:
                    raise UserError(f"group {group} has no offset for {name} {number} to shift: name one with --to")
                wanted = CommittedOffset(known.offset + target.number)
            case Kind.GIVEN:
                wanted = target.given[name][number]
        inside = min(max(wanted.offset, earliest[number]), latest[number])
        changes.append(
            Change(
                name,
                number,
                None if known is None else known.offset,
                wanted.offset,
                wanted._replace(offset=inside),
                latest[number],
            )
        )
    return changes


async def refuse_members(cluster: Cluster, group: str) -> None:
    """While it has members, only they may commit; a group that is not there yet has none."""
    try:
        described = await describe_group(cluster, group)
    except NoSuchGroup:
        return
    if described.members or described.state not in NO_MEMBERS:
        members = counted(len(described.members), "member")
        raise UserError(
            f"group {group} has {members} ({described.state}): stop them first, 'kbroker groups describe {group}' "
            "shows who they are"
        )
