"""Functions of the transaction handlers: pending responses, the shard of an id, and errors that old clients know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.access.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.coordinator.transaction_driver import TransactionDriver
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request
    from kbroker.transaction.result import TransactionResult

__all__ = ["check_transactional_id", "find_transaction", "known_error", "pending_transaction"]


def find_transaction(context: Context, request: Request, transactional_id: str) -> TransactionDriver:
    """Returns the shard of a transactional id.

    Raises Refusal if the client is not authorized to write with it, or this broker does not coordinate it.
    """
    check_transactional_id(context, request, transactional_id)
    if not transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    return context.transactions.shards.find(transactional_id)


def check_transactional_id(context: Context, request: Request, transactional_id: str) -> None:
    """Raises Refusal if the client is not authorized to write with the transactional id."""
    if not allows_transactional_id(context, request, AclOperation.WRITE, transactional_id):
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def pending_transaction(
    request: Request,
    respond: Callable[[Request, TransactionResult], Any],
    refuse: Callable[[Request, int, str | None], Any],
) -> PendingResponse:
    return PendingResponse(
        lambda result: request.reply(respond(request, result)),
        lambda code: request.reply(refuse(request, code, None)),
    )


def known_error(code: ErrorCode, request: Request, fenced_since: int) -> ErrorCode:
    """Returns INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED to clients that do not know that error."""
    if code == ErrorCode.PRODUCER_FENCED and request.version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
