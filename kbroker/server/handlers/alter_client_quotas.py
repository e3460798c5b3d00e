"""AlterClientQuotas (49), v0-1: quotas of users, client ids and addresses set or taken away; or just a check.

An entity is changed as a whole or not at all. One that a request names twice is refused.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_client_quotas as messages
from kbroker.server.authorization import Operation
from kbroker.server.client_quotas import IP, quota_entity, quota_texts
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.ALTER_CONFIGS):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    entries = request.body.entries
    counts = Counter(frozenset(_parts(each)) for each in entries)
    answers = []
    for each in entries:
        try:
            if counts[frozenset(_parts(each))] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "An entity is named more than once.")
            await _alter(context, each, is_try=request.body.validate_only)
        except Refusal as refusal:
            answers.append(_answer(each, refusal))
        else:
            answers.append(_answer(each, None))
    return messages.RESPONSE(entries=answers)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(entries=[_answer(each, Refusal(code, message)) for each in request.body.entries])


async def _alter(context: Context, entry: Any, *, is_try: bool) -> None:
    parts = _parts(entry)
    if len(dict(parts)) < len(parts):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Invalid client quota entity: a type is named twice")
    path = quota_entity(parts)
    changes = {each.key: None if each.remove else each.value for each in entry.ops}
    if len(changes) < len(entry.ops):
        raise Refusal(ErrorCode.INVALID_REQUEST, "A quota is named more than once.")
    address = dict(parts).get(IP)
    if address is not None:
        await _check_address(address)

    def update(current: Mapping[str, str]) -> dict[str, str]:
        return quota_texts(current, changes, is_ip=path.startswith("ips/"))

    await context.controller.update_entity_configs(path, update, validate_only=is_try)


async def _check_address(address: str) -> None:
    try:
        await trio.socket.getaddrinfo(address, None)
    except (socket.gaierror, UnicodeError):
        message = f"{address} is not a valid IP or resolvable host."
        raise Refusal(ErrorCode.INVALID_REQUEST, message) from None


def _parts(entry: Any) -> list[tuple[str, str | None]]:
    return [(each.entity_type, each.entity_name) for each in entry.entity]


def _answer(entry: Any, refusal: Refusal | None) -> Any:
    return messages.EntryDataResponse(
        error_code=0 if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
        entity=[messages.EntityData(entity_type=kind, entity_name=name) for kind, name in _parts(entry)],
    )
