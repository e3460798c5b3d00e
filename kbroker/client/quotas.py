"""Client quotas: limits for users, client ids and addresses (DescribeClientQuotas, AlterClientQuotas)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.controller_requests import send_to_controller
from kbroker.client.failures import BrokerRefusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["ENTITY_TYPES", "ClientQuotas", "QuotaEntity", "alter_quotas", "describe_quotas"]

DESCRIBE_CLIENT_QUOTAS: Final = api(48)
ALTER_CLIENT_QUOTAS: Final = api(49)

ENTITY_TYPES: Final = ("user", "client-id", "ip")
_EXACT: Final = 0
_DEFAULT: Final = 1

QuotaEntity = Mapping[str, str | None]
"""Entity type -> name; None for the default entity, which applies to all names without a quota."""


class ClientQuotas(NamedTuple):
    entity: QuotaEntity
    limits: Mapping[str, float]
    """Name of the quota -> limit, for example producer_byte_rate -> 1048576.0."""


async def describe_quotas(cluster: Cluster, entity: QuotaEntity) -> list[ClientQuotas]:
    """Returns the quotas of all entities that have these parts. An empty entity means all quotas."""
    from kbroker.protocol.messages.describe_client_quotas import ComponentData

    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in entity.items()
    ]
    connection = await cluster.any_connection()
    response = await connection.send(DESCRIBE_CLIENT_QUOTAS, components=components, strict=False)
    if response.error_code != ErrorCode.NONE:
        raise BrokerRefusal(response.error_code, "quotas", response.error_message)
    found = [
        ClientQuotas(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda quotas: sorted((kind, name or "") for kind, name in quotas.entity.items()))


async def alter_quotas(
    cluster: Cluster,
    entity: QuotaEntity,
    *,
    limits: Mapping[str, float],
    removed: Sequence[str] = (),
    validate_only: bool = False,
) -> None:
    from kbroker.protocol.messages.alter_client_quotas import EntityData, EntryData, OpData

    changes = [OpData(key=name, value=limit, remove=False) for name, limit in limits.items()]
    changes += [OpData(key=name, value=0.0, remove=True) for name in removed]
    parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]

    async def send(connection: BrokerConnection) -> Any:
        response = await connection.send(
            ALTER_CLIENT_QUOTAS, entries=[EntryData(entity=parts, ops=changes)], validate_only=validate_only
        )
        return response.entries[0]

    await send_to_controller(cluster, "quotas", send)
