"""InitProducerId (22), v0-5: a producer id and epoch, for idempotence and for transactions.

Without a transactional id every request gets a new id, also one that names the id and epoch it has (v3, KIP-360): the
client then starts over with sequence 0. With one, the id is the same for ever and the epoch grows, which fences whoever
had it before; a transaction that is still open is aborted first, and the client comes again. v4: PRODUCER_FENCED.
Where there are several brokers there are no transactions yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import init_producer_id as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster, allows_topic, allows_transactional_id
from kbroker.server.transaction_requests import find_transaction, known_error, step_ticket
from kbroker.transaction.step import NeedsProducerId, Step

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

NO_ID: Final = -1
FENCED_SINCE: Final = 4


def handle(context: Context, request: Request) -> Any:
    body = request.body
    transactional_id = body.transactional_id
    if transactional_id is not None:
        if not allows_transactional_id(context, request, Operation.WRITE, transactional_id):
            raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not _may_produce(context, request):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (body.producer_id == NO_ID) != (body.producer_epoch == NO_ID):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        if context.member is not None:
            # Better than a transaction that can never end: markers do not reach what other brokers lead.
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
        return _init(context, request, None)
    producer_id = context.producer_ids.take()
    if producer_id is None:
        return _wait(context)
    return messages.RESPONSE(producer_id=producer_id, producer_epoch=0)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, producer_id=NO_ID, producer_epoch=NO_ID)


async def _wait(context: Context) -> Any:
    return messages.RESPONSE(producer_id=await context.producer_ids.wait_next(), producer_epoch=0)


def _may_produce(context: Context, request: Request) -> bool:
    """Whoever may write to some topic may do so idempotently (KIP-679)."""
    return allows_cluster(context, request, Operation.IDEMPOTENT_WRITE) or any(
        allows_topic(context, request, Operation.WRITE, name) for name in context.controller.image.topics
    )


def _init(context: Context, request: Request, new_id: int | None) -> Any:
    body = request.body
    if not body.transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if not 0 < body.transaction_timeout_ms <= context.config.transaction_max_timeout_ms:
        raise Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    driver = find_transaction(context, request, body.transactional_id)
    expected = None if body.producer_id == NO_ID else (body.producer_id, body.producer_epoch)
    try:
        step = driver.shard.init_producer_id(
            body.transactional_id, body.transaction_timeout_ms, expected, new_id, driver.now_ms()
        )
    except NeedsProducerId:
        return _init_with_new_id(context, request)
    driver.take(body.transactional_id, step, step_ticket(request, _respond, refuse))
    return None


async def _init_with_new_id(context: Context, request: Request) -> Any:
    return _init(context, request, await context.producer_ids.wait_next())


def _respond(request: Request, step: Step) -> Any:
    code = known_error(step.error, request, FENCED_SINCE)
    return messages.RESPONSE(error_code=code, producer_id=step.producer_id, producer_epoch=step.producer_epoch)
