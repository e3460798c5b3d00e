"""FindCoordinator (10), v0-6: which broker coordinates a group. Several keys from v4 on.

The topic that groups live in is made when the first group asks; the answer comes when it is there. Transactions have no
coordinator yet; share groups are not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.names import CONSUMER_OFFSETS
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
        return _create_and_answer(context, request)
    return _answer(context, request)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response(request, [_nobody(key, code) for key in _keys(request)])


async def _create_and_answer(context: Context, request: Request) -> Any:
    if any(allows_group(context, request, Operation.DESCRIBE, key) for key in _keys(request)):
        await context.groups.ensure_topic()
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
    groups, image = context.groups, context.controller.image
    if not groups.has_topic:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = image.partition(CONSUMER_OFFSETS, groups.partition_for(key))
    broker = None if partition is None else image.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoint(request.listener_name)
    if broker is None or endpoint is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return messages.Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


def _find_transaction(context: Context, request: Request, key: str) -> Any:
    if not allows_transactional_id(context, request, Operation.DESCRIBE, key):
        return _nobody(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)


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
