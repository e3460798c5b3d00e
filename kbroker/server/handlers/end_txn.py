"""EndTxn (26), v0-5: commits or aborts a transaction. The answer says that it is decided; markers follow at once.

v2: PRODUCER_FENCED, INVALID_PRODUCER_EPOCH before. v5: the producer goes on with the id and epoch in the answer, so
that nothing sent late can end its next transaction (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.messages import end_txn as messages
from kbroker.server.transaction_requests import find_transaction, known_error, step_ticket
from kbroker.transaction.step import NeedsProducerId, Step

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

FENCED_SINCE: Final = 2
BUMPS_SINCE: Final = 5


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
    step = driver.shard.end(
        body.transactional_id,
        body.producer_id,
        body.producer_epoch,
        is_commit=body.committed,
        now_ms=driver.now_ms(),
        client_version=2 if request.version >= BUMPS_SINCE else 0,
        new_id=new_id,
    )
    driver.take(body.transactional_id, step, step_ticket(request, _respond, _refuse))


def _respond(request: Request, step: Step) -> Any:
    code = known_error(step.error, request, FENCED_SINCE)
    return messages.RESPONSE(error_code=code, producer_id=step.producer_id, producer_epoch=step.producer_epoch)


def _refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code)
