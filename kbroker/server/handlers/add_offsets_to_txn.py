"""AddOffsetsToTxn (25), v0-4: a transaction will commit offsets of a group, so its partition joins.

v2: PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_offsets_to_txn as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import allows_group
from kbroker.server.transaction_requests import find_transaction, known_error, step_ticket
from kbroker.transaction.step import Step

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

FENCED_SINCE: Final = 2


def handle(context: Context, request: Request) -> Any:
    find_transaction(context, request, request.body.transactional_id)
    if not allows_group(context, request, Operation.READ, request.body.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return _add(context, request) if context.groups.has_topic else _create_and_add(context, request)


async def _create_and_add(context: Context, request: Request) -> Any:
    await context.groups.ensure_topic()
    return _add(context, request)


def _add(context: Context, request: Request) -> Any:
    body = request.body
    driver = find_transaction(context, request, body.transactional_id)
    partition = (CONSUMER_OFFSETS, context.groups.partition_for(body.group_id))
    step = driver.shard.add_partitions(
        body.transactional_id, body.producer_id, body.producer_epoch, [partition], driver.now_ms()
    )
    driver.take(body.transactional_id, step, step_ticket(request, _respond, _refuse))


def _respond(request: Request, step: Step) -> Any:
    return messages.RESPONSE(error_code=known_error(step.error, request, FENCED_SINCE))


def _refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
