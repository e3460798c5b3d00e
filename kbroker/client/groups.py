"""Groups as an administrator sees them: listed over all brokers, described by their coordinator, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.address import Address
from kbroker.client.cluster import NO_LEADER, Cluster
from kbroker.client.connection import Connection
from kbroker.client.coordinator import ask_coordinator
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
"""As a type: groups of KIP-848. As a protocol type of classic groups: consumers, whose assignments can be read."""

_VERSION_SIZE: Final = 2
_DEAD: Final = "Dead"

Assignment = Mapping[str, tuple[int, ...]]
"""Topic -> partitions."""


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str | None
    """None, as the type, where the broker is too old to say."""
    group_type: str | None


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: Assignment | None
    """None where only the members know what its bytes mean."""


class GroupDescription(NamedTuple):
    group_id: str
    group_type: str
    protocol_type: str
    state: str
    assignor: str
    epoch: int | None
    """Of a consumer group; a classic one does not tell its generation."""
    members: tuple[GroupMember, ...]
    coordinator_id: int
    coordinator: Address


async def list_groups(cluster: Cluster, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
    """Of all brokers, sorted by name; the filters take any case. What an old broker cannot say is not filtered out."""
    wanted_states, wanted_types = ({each.lower() for each in filters} for filters in (states, types))
    await cluster.refresh([])
    found: dict[str, ListedGroup] = {}
    for node_id in cluster.brokers:
        for each in await _list_groups_of(cluster, node_id):
            found[each.group_id] = each
    return [
        each
        for _, each in sorted(found.items())
        if (not wanted_states or each.state is None or each.state.lower() in wanted_states)
        and (not wanted_types or each.group_type is None or each.group_type.lower() in wanted_types)
    ]


async def _list_groups_of(cluster: Cluster, node_id: int) -> list[ListedGroup]:
    patience = cluster.patience()
    while True:
        connection = await cluster.broker_connection(node_id)
        response = await connection.ask(LIST_GROUPS)
        if response.error_code == ErrorCode.NONE:
            return [
                ListedGroup(each.group_id, each.protocol_type, each.group_state or None, each.group_type or None)
                for each in response.groups
            ]
        refusal = BrokerRefusal(response.error_code, f"the groups of broker {node_id}")
        if not refusal.code.retriable:
            raise refusal
        await patience.pause(refusal)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Whatever its protocol: asked as a consumer group first, for a classic one is no error but another answer."""
    try:
        return await _describe_consumer_group(cluster, group)
    except (NoSuchGroup, NotServed):
        pass
    try:
        return await _describe_classic_group(cluster, group)
    except NoSuchGroup:
        for each in await list_groups(cluster):
            if each.group_id == group and each.group_type not in (CLASSIC, CONSUMER, None):
                raise UserError(
                    f"{group} is a {each.group_type} group: only consumer groups are handled here"
                ) from None
        raise


async def _describe_consumer_group(cluster: Cluster, group: str) -> GroupDescription:
    async def ask(connection: Connection) -> tuple[int, GroupDescription]:
        response = await connection.ask(CONSUMER_GROUP_DESCRIBE, group_ids=[group])
        (found,) = response.groups
        members = (
            GroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                {topic.topic_name: tuple(sorted(topic.partitions)) for topic in each.assignment.topic_partitions},
            )
            for each in found.members
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

    described: GroupDescription = await ask_coordinator(cluster, group, ask)
    return described


async def _describe_classic_group(cluster: Cluster, group: str) -> GroupDescription:
    async def ask(connection: Connection) -> tuple[int, GroupDescription]:
        response = await connection.ask(DESCRIBE_GROUPS, groups=[group])
        (found,) = response.groups
        is_readable = found.protocol_type == CONSUMER
        members = (
            GroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                _read_assignment(bytes(each.member_assignment)) if is_readable else None,
            )
            for each in found.members
        )
        # Before v6 a group that is not there is dead.
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

    described: GroupDescription = await ask_coordinator(cluster, group, ask)
    return described


def _read_assignment(assignment: bytes) -> Assignment | None:
    """What consumers tell each other; empty while they have not agreed yet."""
    if not assignment:
        return {}
    try:
        # Every later version only adds at the end.
        decoded: Any = codec(ASSIGNMENT, 0).decode(assignment, _VERSION_SIZE)[0]
    except PeerError:
        return None
    return {each.topic: tuple(sorted(each.partitions)) for each in decoded.assigned_partitions}


def _id_of(cluster: Cluster, address: Address) -> int:
    return next((each.node_id for each in cluster.brokers.values() if each.address == address), NO_LEADER)


async def delete_group(cluster: Cluster, group: str) -> None:
    """With all its offsets; only while it has no members."""

    async def ask(connection: Connection) -> tuple[int, None]:
        response = await connection.ask(DELETE_GROUPS, groups_names=[group])
        (result,) = response.results
        return result.error_code, None

    await ask_coordinator(cluster, group, ask)
