"""AddOffsetsToTxn (25), v0-4: adds the `__consumer_offsets` partition of a group to a transaction (KIP-98).

Before v2, PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH (KIP-588).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_offsets_to_txn as messages
from kbroker.server.access.permissions import allows_group
from kbroker.server.coordinators.transaction_requests import (
    check_transactional_id,
    find_transaction,
    known_error,
    pending_transaction,
)
from kbroker.transaction.result import TransactionResult

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

FENCED_SINCE: Final = 2


def handle(context: Context, request: Request) -> Any:
    check_transactional_id(context, request, request.body.transactional_id)
    if not allows_group(context, request, AclOperation.READ, request.body.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    find_transaction(context, request, request.body.transactional_id)
    return _add(context, request) if context.groups.shards.has_topic else _create_and_add(context, request)


async def _create_and_add(context: Context, request: Request) -> Any:
    await context.groups.shards.ensure_topic()
    return _add(context, request)


def _add(context: Context, request: Request) -> Any:
    body = request.body
    driver = find_transaction(context, request, body.transactional_id)
    partition = (CONSUMER_OFFSETS, context.groups.shards.partition_for(body.group_id))
    result = driver.shard.add_partitions(
        body.transactional_id, body.producer_id, body.producer_epoch, [partition], driver.now_ms()
    )
    driver.apply(body.transactional_id, result, pending_transaction(request, _respond, _refuse))


def _respond(request: Request, result: TransactionResult) -> Any:
    return messages.RESPONSE(error_code=known_error(result.error, request, FENCED_SINCE))


def _refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
