"""FindCoordinator (10), v0-6: returns the broker that coordinates a group or a transactional id.

Creates the internal topic on first use, and responds once it exists. v1: transactional ids. v4: several keys in one
request (KIP-699). Share groups (v6, KIP-932) are not supported.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import find_coordinator as messages
from kbroker.server.access.permissions import allows_cluster, allows_group, allows_transactional_id
from kbroker.time_slice import end_unless, respond_in_slices

if TYPE_CHECKING:
    from kbroker.coordinator.shard_table import ShardTable
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

SEVERAL_KEYS_SINCE: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if body.key_type == GROUP and not context.groups.shards.has_topic:
        if any(allows_group(context, request, AclOperation.DESCRIBE, key, quiet=True) for key in _keys(request)):
            return _respond_after(context.groups.shards.ensure_topic(), context, request)
    elif body.key_type == TRANSACTION and not context.transactions.shards.has_topic:
        if any(allows_transactional_id(context, request, AclOperation.DESCRIBE, key) for key in _keys(request)):
            return _respond_after(context.transactions.shards.ensure_topic(), context, request)
    return _respond(context, request)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response(request, [_failure(key, code) for key in _keys(request)])


async def _respond_after(creating: Awaitable[None], context: Context, request: Request) -> Any:
    end_unless(None)  # a topic is created whole
    await creating
    response = _respond(context, request)
    return await response if response.__class__ is CoroutineType else response


def _respond(context: Context, request: Request) -> Any:
    find = {GROUP: _find_group, TRANSACTION: _find_transaction}.get(request.body.key_type)
    if find is None:
        if request.body.key_type == SHARE and not allows_cluster(context, request, AclOperation.CLUSTER_ACTION):
            return refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        return refuse(request, ErrorCode.INVALID_REQUEST, None)
    return respond_in_slices(
        context.clock, partial(find, context, request), _keys(request), partial(_response, request)
    )


def _keys(request: Request) -> list[str]:
    body = request.body
    return body.coordinator_keys if request.version >= SEVERAL_KEYS_SINCE else [body.key]


def _find_group(context: Context, request: Request, key: str) -> Any:
    if not allows_group(context, request, AclOperation.DESCRIBE, key):
        return _failure(key, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return _leader(context, request, key, CONSUMER_OFFSETS, context.groups.shards)


def _find_transaction(context: Context, request: Request, key: str) -> Any:
    if not allows_transactional_id(context, request, AclOperation.DESCRIBE, key):
        return _failure(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _leader(context, request, key, TRANSACTION_STATE, context.transactions.shards)


def _leader(context: Context, request: Request, key: str, topic: str, shards: ShardTable[Any]) -> Any:
    image = context.controller.image
    partition = image.partition(topic, shards.partition_for(key)) if shards.has_topic else None
    broker = None if partition is None else image.brokers.get(partition.leader)
    endpoint = None if broker is None else broker.endpoint(request.listener_name)
    if broker is None or endpoint is None:
        return _failure(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return messages.Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


def _failure(key: str, code: int) -> Any:
    return messages.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)


def _response(request: Request, found: list[Any]) -> Any:
    if request.version >= SEVERAL_KEYS_SINCE:
        return messages.RESPONSE(coordinators=found)
    only = found[0]
    return messages.RESPONSE(
        error_code=only.error_code,
        error_message=ErrorCode(only.error_code).name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )
