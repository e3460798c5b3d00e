"""AlterClientQuotas (49), v0-1: sets or removes quotas of users, client ids and IP addresses (KIP-546).

Each entity is changed completely or not at all. An entity that a request names twice is refused. `validate_only`
changes nothing.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_client_quotas as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.quotas.client_quotas import IP, quota_entity, quota_texts
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import TimeSlice, map_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER_CONFIGS):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    entries = request.body.entries
    entities = await map_in_slices(context.clock, lambda entry: frozenset(_parts(entry)), entries)
    counts = Counter(entities)
    results = []
    time_slice = TimeSlice(context.clock)
    for entry, entity in zip(entries, entities, strict=True):
        outcome: Refusal | None = None
        try:
            if counts[entity] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Each client quota entity must appear at most once.")
            await _alter(context, entry, validate_only=request.body.validate_only)
        except Refusal as refusal:
            outcome = refusal.with_traceback(None)  # its frames would stay in memory until the response
        results.append(_result(entry, outcome))
        await time_slice.checkpoint_if_over()
    return messages.RESPONSE(entries=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(entries=[_result(entry, Refusal(code, message)) for entry in request.body.entries])


async def _alter(context: Context, entry: Any, *, validate_only: bool) -> None:
    parts = _parts(entry)
    if len(dict(parts)) < len(parts):
        repeated = next(kind for kind, count in Counter(kind for kind, _ in parts).items() if count > 1)
        message = f"Invalid client quota entity, duplicate entity entry {repeated}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    path = quota_entity(parts)
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    if len(changes) < len(entry.ops):
        repeated = next(key for key, count in Counter(op.key for op in entry.ops).items() if count > 1)
        entries = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in parts)
        entity = f"ClientQuotaEntity(entries={{{entries}}})"
        message = f"Duplicate quota key {repeated} not updating quota for this entity {entity}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    address = dict(parts).get(IP)
    if address is not None:
        await _check_address(address)

    def update(current: Mapping[str, str]) -> dict[str, str]:
        return quota_texts(current, changes, is_ip=path.startswith("ips/"))

    await context.controller.update_entity_configs(path, update, validate_only=validate_only)


async def _check_address(address: str) -> None:
    try:
        await trio.socket.getaddrinfo(address, None)
    except (socket.gaierror, UnicodeError):
        message = f"{address} is not a valid IP or resolvable host."
        raise Refusal(ErrorCode.INVALID_REQUEST, message) from None


def _parts(entry: Any) -> list[tuple[str, str | None]]:
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def _result(entry: Any, refusal: Refusal | None) -> Any:
    return messages.EntryDataResponse(
        **error_fields(refusal),
        entity=[messages.EntityData(entity_type=kind, entity_name=name) for kind, name in _parts(entry)],
    )
