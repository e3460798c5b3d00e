"""FindCoordinator (10), v0-6: which broker coordinates a group, or a transactional id (v1). Several keys from v4 on.

The topic that they live in is made when the first one asks; the answer comes when it is there. Share groups are not
served.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import find_coordinator as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import allows_group
from kbroker.server.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

SEVERAL_SINCE: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if body.key_type == GROUP and not context.groups.has_topic:
        if any(allows_group(context, request, Operation.DESCRIBE, key) for key in _keys(request)):
            return _answer_after(context.groups.ensure_topic(), context, request)
    elif body.key_type == TRANSACTION and not context.transactions.has_topic:
        if any(allows_transactional_id(context, request, Operation.DESCRIBE, key) for key in _keys(request)):
            return _answer_after(context.transactions.ensure_topic(), context, request)
    return _answer(context, request)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response(request, [_nobody(key, code) for key in _keys(request)])


async def _answer_after(creating: Awaitable[None], context: Context, request: Request) -> Any:
    await creating
    return _answer(context, request)


def _answer(context: Context, request: Request) -> Any:
    find = {GROUP: _find_group, TRANSACTION: _find_transaction}.get(request.body.key_type)
    if find is None:
        return refuse(request, ErrorCode.INVALID_REQUEST, None)
    return _response(request, [find(context, request, key) for key in _keys(request)])


def _keys(request: Request) -> list[str]:
    body = request.body
    return body.coordinator_keys if request.version >= SEVERAL_SINCE else [body.key]


def _find_group(context: Context, request: Request, key: str) -> Any:
    if not allows_group(context, request, Operation.DESCRIBE, key):
        return _nobody(key, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not context.groups.has_topic:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _leader(context, request, key, CONSUMER_OFFSETS, context.groups.partition_for(key))


def _find_transaction(context: Context, request: Request, key: str) -> Any:
    if not allows_transactional_id(context, request, Operation.DESCRIBE, key):
        return _nobody(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.transactions.has_topic:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _leader(context, request, key, TRANSACTION_STATE, context.transactions.partition_for(key))


def _leader(context: Context, request: Request, key: str, topic: str, index: int) -> Any:
    image = context.controller.image
    partition = image.partition(topic, index)
    broker = None if partition is None else image.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoint(request.listener_name)
    if broker is None or endpoint is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return messages.Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


def _nobody(key: str, code: int) -> Any:
    return messages.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)


def _response(request: Request, found: list[Any]) -> Any:
    if request.version >= SEVERAL_SINCE:
        return messages.RESPONSE(coordinators=found)
    only = found[0]
    return messages.RESPONSE(
        error_code=only.error_code,
        error_message=ErrorCode(only.error_code).name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )
