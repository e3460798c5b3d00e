"""What the handlers of transactions share: the way back for a step, permission, and which error an old client knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.coordinator.transaction_driver import TransactionDriver
    from kbroker.server.context import Context
    from kbroker.server.request import Request
    from kbroker.transaction.step import Step

__all__ = ["find_transaction", "known_error", "step_ticket"]


def find_transaction(context: Context, request: Request, transactional_id: str) -> TransactionDriver:
    """The shard of a transactional id that the client may write with."""
    if not allows_transactional_id(context, request, Operation.WRITE, transactional_id):
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    return context.transactions.find(transactional_id)


def step_ticket(
    request: Request, respond: Callable[[Request, Step], Any], refuse: Callable[[Request, int, str | None], Any]
) -> Ticket:
    return Ticket(
        lambda step: request.reply(respond(request, step)),
        lambda code: request.reply(refuse(request, code, None)),
    )


def known_error(code: ErrorCode, request: Request, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED is younger than these APIs."""
    if code == ErrorCode.PRODUCER_FENCED and request.version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
