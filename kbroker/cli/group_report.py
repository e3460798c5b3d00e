"""What `kbroker groups describe` tells: a group, its members, and how far behind it is in each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.cli.output import Cell, counted
from kbroker.client.cluster import NO_LEADER, Cluster
from kbroker.client.failures import NoSuchTopic
from kbroker.client.groups import Assignment, GroupDescription, GroupMember, describe_group
from kbroker.client.offsets import LATEST, CommittedOffset, group_offsets, list_offsets

__all__ = ["Lag", "Report", "Section", "assignment_text", "report_on"]


class Lag(NamedTuple):
    topic: str
    partition: int
    current: int | None
    log_end_offset: int | None
    """None where the topic is gone, or nobody leads the partition."""
    owner: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.current is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current


class Section(NamedTuple):
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class Report(NamedTuple):
    group: GroupDescription
    lags: list[Lag]

    @property
    def title(self) -> str:
        group = self.group
        kind = group.group_type if group.protocol_type in ("", "consumer") else f"{group.protocol_type}, classic"
        facts = [f"{kind} group", group.state, counted(len(group.members), "member")]
        facts += [f"assignor {group.assignor}"] if group.assignor else []
        facts.append(f"coordinator {group.coordinator_id} at {group.coordinator}")
        return f"{group.group_id}: {', '.join(facts)}"

    def sections(self) -> Iterator[Section]:
        if self.lags:
            yield Section(
                ("topic", "partition", "current", "log end", "lag", "client", "host", "member"),
                [
                    (each.topic, each.partition, each.current, each.log_end_offset, each.lag, *_owner(each.owner))
                    for each in self.lags
                ],
            )
        if self.group.members:
            yield Section(
                ("member", "instance", "client", "host", "assignment"),
                [
                    (
                        each.member_id,
                        each.instance_id,
                        each.client_id,
                        each.client_host,
                        assignment_text(each.assignment),
                    )
                    for each in self.group.members
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
                    "member": each.member_id,
                    "instance": each.instance_id,
                    "client": each.client_id,
                    "host": each.client_host,
                    "assignment": None if each.assignment is None else dict(each.assignment),
                }
                for each in group.members
            ],
            "offsets": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "current": each.current,
                    "log_end": each.log_end_offset,
                    "lag": each.lag,
                    "member": None if each.owner is None else each.owner.member_id,
                }
                for each in self.lags
            ],
        }


def _owner(member: GroupMember | None) -> tuple[Cell, ...]:
    return (None, None, None) if member is None else (member.client_id, member.client_host, member.member_id)


def assignment_text(assignment: Assignment | None) -> str | None:
    if assignment is None:
        return None
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()))


async def report_on(cluster: Cluster, group_id: str) -> Report:
    group = await describe_group(cluster, group_id)
    committed = await group_offsets(cluster, group_id)
    owners = {
        (topic, number): member
        for member in group.members
        for topic, numbers in (member.assignment or {}).items()
        for number in numbers
    }
    known = {(topic, number) for topic, partitions in committed.items() for number in partitions}
    wanted: dict[str, list[int]] = {}
    for topic, number in sorted(known | owners.keys()):
        wanted.setdefault(topic, []).append(number)
    lags: list[Lag] = []
    for topic, numbers in wanted.items():
        ends = await _log_ends(cluster, topic, numbers)
        offsets: Mapping[int, CommittedOffset] = committed.get(topic, {})
        lags += [
            Lag(
                topic,
                number,
                offsets[number].offset if number in offsets else None,
                ends.get(number),
                owners.get((topic, number)),
            )
            for number in numbers
        ]
    return Report(group, lags)


async def _log_ends(cluster: Cluster, name: str, numbers: list[int]) -> dict[int, int]:
    try:
        topic = await cluster.topic(name, is_fresh=True)
    except NoSuchTopic:
        return {}
    led = {each.number for each in topic.partitions if each.leader != NO_LEADER}
    found = await list_offsets(cluster, name, {number: LATEST for number in numbers if number in led})
    return {number: each.offset for number, each in found.items()}
