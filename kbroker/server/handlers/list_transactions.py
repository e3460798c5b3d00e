"""ListTransactions (66), v0-2: the transactional ids that this broker coordinates, by state and producer (KIP-664); by
how long their transaction is open from v1 on, by a pattern of their names from v2 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.group.patterns import InvalidPattern, compile_pattern
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_transactions as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_transactional_id
from kbroker.transaction.states import TransactionState

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

_STATES = {each.text for each in TransactionState}


def handle(context: Context, request: Request) -> Any:
    body = request.body
    wanted = set(body.state_filters)
    producer_ids = set(body.producer_id_filters)
    pattern = body.transactional_id_pattern
    try:
        matches = compile_pattern(pattern) if pattern else None
    except InvalidPattern:
        return messages.RESPONSE(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    now_ms = context.clock.now_ms()
    listed = [
        messages.TransactionState(
            transactional_id=each, producer_id=transaction.producer_id, transaction_state=transaction.state.text
        )
        for driver in context.transactions.loaded()
        for each, transaction in driver.shard.transactions.items()
        if (not wanted or transaction.state.text in wanted)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (body.duration_filter < 0 or now_ms - transaction.start_ms > body.duration_filter)
        and (matches is None or matches(each))
        and allows_transactional_id(context, request, Operation.DESCRIBE, each)
    ]
    return messages.RESPONSE(unknown_state_filters=sorted(wanted - _STATES), transaction_states=listed)
