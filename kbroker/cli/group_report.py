"""Report of `kbroker groups describe`: a group, its members, and its lag in each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.cli.output import Cell, pluralize
from kbroker.client.admin.groups import GroupDescription, GroupMember, MemberAssignment, describe_group
from kbroker.client.cluster import NO_LEADER, Cluster
from kbroker.client.failures import NoSuchTopic
from kbroker.client.offsets import LATEST, GroupOffset, group_offsets, list_offsets

__all__ = ["GroupReport", "PartitionLag", "Section", "assignment_text", "read_group_report"]


class PartitionLag(NamedTuple):
    topic: str
    partition: int
    current: int | None
    log_end_offset: int | None
    """None if the topic was deleted or the partition has no leader."""
    owner: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.current is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current


class Section(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class GroupReport(NamedTuple):
    group: GroupDescription
    lags: list[PartitionLag]

    @property
    def title(self) -> str:
        """Returns one line: type, state, member count, assignor and coordinator of the group."""
        group = self.group
        kind = group.group_type if group.protocol_type in ("", "consumer") else f"{group.protocol_type}, classic"
        facts = [f"{kind} group", group.state, pluralize(len(group.members), "member")]
        facts += [f"assignor {group.assignor}"] if group.assignor else []
        facts.append(f"coordinator {group.coordinator_id} at {group.coordinator}")
        return f"{group.group_id}: {', '.join(facts)}"

    def sections(self) -> Iterator[Section]:
        if self.lags:
            yield Section(
                ("topic", "partition", "current", "log end", "lag", "client", "host", "member"),
                [
                    (lag.topic, lag.partition, lag.current, lag.log_end_offset, lag.lag, *_owner_cells(lag.owner))
                    for lag in self.lags
                ],
            )
        if self.group.members:
            yield Section(
                ("member", "instance", "client", "host", "assignment"),
                [
                    (
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        assignment_text(member.assignment),
                    )
                    for member in self.group.members
                ],
            )

    def as_json(self) -> dict[str, Any]:
        group = self.group
        return {
            "group": group.group_id,
            "type": group.group_type,
            "protocol_type": group.protocol_type,
            "state": group.state,
            "assignor": group.assignor,
            "epoch": group.epoch,
            "coordinator": {
                "id": group.coordinator_id,
                "host": group.coordinator.host,
                "port": group.coordinator.port,
            },
            "members": [
                {
                    "member": member.member_id,
                    "instance": member.instance_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "assignment": None if member.assignment is None else dict(member.assignment),
                }
                for member in group.members
            ],
            "offsets": [
                {
                    "topic": lag.topic,
                    "partition": lag.partition,
                    "current": lag.current,
                    "log_end": lag.log_end_offset,
                    "lag": lag.lag,
                    "member": None if lag.owner is None else lag.owner.member_id,
                }
                for lag in self.lags
            ],
        }


def _owner_cells(member: GroupMember | None) -> tuple[Cell, ...]:
    return (None, None, None) if member is None else (member.client_id, member.client_host, member.member_id)


def assignment_text(assignment: MemberAssignment | None) -> str | None:
    if assignment is None:
        return None
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()))


async def read_group_report(cluster: Cluster, group_id: str) -> GroupReport:
    """Reports on all partitions that the group has committed offsets for or that a member owns."""
    group = await describe_group(cluster, group_id)
    committed = await group_offsets(cluster, group_id)
    owners = {
        (topic, number): member
        for member in group.members
        for topic, numbers in (member.assignment or {}).items()
        for number in numbers
    }
    committed_partitions = {(topic, number) for topic, partitions in committed.items() for number in partitions}
    partitions_by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(committed_partitions | owners.keys()):
        partitions_by_topic.setdefault(topic, []).append(number)
    lags: list[PartitionLag] = []
    for topic, numbers in partitions_by_topic.items():
        ends = await _log_end_offsets(cluster, topic, numbers)
        offsets: Mapping[int, GroupOffset] = committed.get(topic, {})
        lags += [
            PartitionLag(
                topic,
                number,
                offsets[number].offset if number in offsets else None,
                ends.get(number),
                owners.get((topic, number)),
            )
            for number in numbers
        ]
    return GroupReport(group, lags)


async def _log_end_offsets(cluster: Cluster, name: str, numbers: list[int]) -> dict[int, int]:
    try:
        topic = await cluster.topic(name, is_fresh=True)
    except NoSuchTopic:
        return {}
    with_leader = {partition.number for partition in topic.partitions if partition.leader != NO_LEADER}
    found = await list_offsets(cluster, name, {number: LATEST for number in numbers if number in with_leader})
    return {number: listed.offset for number, listed in found.items()}
