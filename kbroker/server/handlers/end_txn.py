"""EndTxn (26), v0-5: commits or aborts a transaction; responds when the decision is committed (KIP-98).

The coordinator writes the markers after that. Before v2, PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH (KIP-588).
v5: the response has the producer id and epoch for the next transaction, so that a delayed request cannot end it
(KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.messages import end_txn as messages
from kbroker.server.coordinators.transaction_requests import find_transaction, known_error, pending_transaction
from kbroker.transaction.result import NeedsProducerId, TransactionResult

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

FENCED_SINCE: Final = 2
EPOCH_BUMP_SINCE: Final = 5


def handle(context: Context, request: Request) -> Any:
    try:
        return _end(context, request, None)
    except NeedsProducerId:
        return _end_with_new_id(context, request)


async def _end_with_new_id(context: Context, request: Request) -> Any:
    return _end(context, request, await context.producer_ids.wait_next())


def _end(context: Context, request: Request, new_id: int | None) -> Any:
    body = request.body
    driver = find_transaction(context, request, body.transactional_id)
    result = driver.shard.end(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        is_commit=body.committed,
        now_ms=driver.now_ms(),
        client_version=2 if request.version >= EPOCH_BUMP_SINCE else 0,
        new_id=new_id,
    )
    driver.apply(body.transactional_id, result, pending_transaction(request, _respond, _refuse))


def _respond(request: Request, result: TransactionResult) -> Any:
    code = known_error(result.error, request, FENCED_SINCE)
    return messages.RESPONSE(error_code=code, producer_id=result.producer_id, producer_epoch=result.producer_epoch)


def _refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
