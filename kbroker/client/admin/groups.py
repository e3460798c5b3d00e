"""Admin operations on groups: lists the groups of all brokers, describes and deletes groups at their coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.address import Address
from kbroker.client.cluster import NO_LEADER, Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.coordinator import send_to_coordinator
from kbroker.client.failures import BrokerRefusal, NoSuchGroup, NotServed
from kbroker.errors import PeerError, UserError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import ASSIGNMENT
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "CLASSIC",
    "CONSUMER",
    "GroupDescription",
    "GroupMember",
    "ListedGroup",
    "delete_group",
    "describe_group",
    "list_groups",
]

DESCRIBE_GROUPS: Final = api(15)
LIST_GROUPS: Final = api(16)
DELETE_GROUPS: Final = api(42)
CONSUMER_GROUP_DESCRIBE: Final = api(69)

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""A group type (KIP-848), and the protocol type of classic consumer groups, whose assignments can be decoded."""

_VERSION_SIZE: Final = 2
_DEAD: Final = "Dead"

MemberAssignment = Mapping[str, tuple[int, ...]]
"""Topic -> partitions."""


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str | None
    """None if the broker is too old to return it."""
    group_type: str | None
    """None if the broker is too old to return it."""


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: MemberAssignment | None
    """None if the members are not consumers: only they can decode the assignment."""


class GroupDescription(NamedTuple):
    group_id: str
    group_type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int | None
    """Group epoch of a consumer group; None for a classic group, whose generation DescribeGroups does not return."""
    members: tuple[GroupMember, ...]
    coordinator_id: int
    coordinator: Address


async def list_groups(cluster: Cluster, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
    """Lists the groups of all brokers, sorted by id.

    Filters ignore case, and keep groups whose state or type is unknown.
    """
    wanted_states, wanted_types = ({word.lower() for word in filters} for filters in (states, types))
    found: dict[str, ListedGroup] = {}
    for listed in await cluster.ask_each_broker(lambda node_id: _list_groups_of(cluster, node_id)):
        for group in listed:
            found[group.group_id] = group
    return [
        group
        for _, group in sorted(found.items())
        if (not wanted_states or group.state is None or group.state.lower() in wanted_states)
        and (not wanted_types or group.group_type is None or group.group_type.lower() in wanted_types)
    ]


async def _list_groups_of(cluster: Cluster, node_id: int) -> list[ListedGroup]:
    backoff = cluster.backoff()
    while True:
        connection = await cluster.broker_connection(node_id)
        response = await connection.send(LIST_GROUPS)
        if response.error_code == ErrorCode.NONE:
            return [
                ListedGroup(group.group_id, group.protocol_type, group.group_state or None, group.group_type or None)
                for group in response.groups
            ]
        refusal = BrokerRefusal(response.error_code, f"groups of broker {node_id}")
        if not refusal.code.retriable:
            raise refusal
        await backoff.pause(refusal)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Describes a group of either protocol.

    Asks ConsumerGroupDescribe first: before v6, DescribeGroups answers for a KIP-848 group without an error, as Dead.
    """
    try:
        return await _describe_consumer_group(cluster, group)
    except (NoSuchGroup, NotServed):
        pass
    try:
        return await _describe_classic_group(cluster, group)
    except NoSuchGroup:
        for listed in await list_groups(cluster):
            if listed.group_id == group and listed.group_type not in (CLASSIC, CONSUMER, None):
                raise UserError(
                    f"Group '{group}' is a {listed.group_type} group. Only classic and consumer groups are supported."
                ) from None
        raise


async def _describe_consumer_group(cluster: Cluster, group: str) -> GroupDescription:
    async def send(connection: BrokerConnection) -> tuple[int, GroupDescription]:
        response = await connection.send(CONSUMER_GROUP_DESCRIBE, group_ids=[group])
        (found,) = response.groups
        members = (
            GroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                {topic.topic_name: tuple(sorted(topic.partitions)) for topic in member.assignment.topic_partitions},
            )
            for member in found.members
        )
        return found.error_code, GroupDescription(
            group,
            CONSUMER,
            CONSUMER,
            found.group_state,
            found.assignor_name,
            found.group_epoch,
            tuple(members),
            _id_of(cluster, connection.address),
            connection.address,
        )

    described: GroupDescription = await send_to_coordinator(cluster, group, send)
    return described


async def _describe_classic_group(cluster: Cluster, group: str) -> GroupDescription:
    async def send(connection: BrokerConnection) -> tuple[int, GroupDescription]:
        response = await connection.send(DESCRIBE_GROUPS, groups=[group])
        (found,) = response.groups
        is_readable = found.protocol_type == CONSUMER
        members = (
            GroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                _read_assignment(bytes(member.member_assignment)) if is_readable else None,
            )
            for member in found.members
        )
        # Before v6, the state of a group that does not exist is Dead, without an error.
        is_absent = found.error_code == ErrorCode.NONE and found.group_state == _DEAD
        return ErrorCode.GROUP_ID_NOT_FOUND if is_absent else found.error_code, GroupDescription(
            group,
            CLASSIC,
            found.protocol_type,
            found.group_state,
            found.protocol_data,
            None,
            tuple(members),
            _id_of(cluster, connection.address),
            connection.address,
        )

    described: GroupDescription = await send_to_coordinator(cluster, group, send)
    return described


def _read_assignment(assignment: bytes) -> MemberAssignment | None:
    """Decodes the assignment of a consumer.

    Returns {} before the first rebalance ends, and None if it cannot be decoded.
    """
    if not assignment:
        return {}
    try:
        # Later versions only add fields at the end.
        decoded: Any = codec(ASSIGNMENT, 0).decode(assignment, _VERSION_SIZE)[0]
    except PeerError:
        return None
    return {topic.topic: tuple(sorted(topic.partitions)) for topic in decoded.assigned_partitions}


def _id_of(cluster: Cluster, address: Address) -> int:
    return next((broker.node_id for broker in cluster.brokers.values() if broker.address == address), NO_LEADER)


async def delete_group(cluster: Cluster, group: str) -> None:
    """Deletes a group and its committed offsets. Raises BrokerRefusal if the group has active members."""

    async def send(connection: BrokerConnection) -> tuple[int, None]:
        response = await connection.send(DELETE_GROUPS, groups_names=[group])
        (result,) = response.results
        return result.error_code, None

    await send_to_coordinator(cluster, group, send)
