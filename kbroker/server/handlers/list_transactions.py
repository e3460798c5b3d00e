"""ListTransactions (66), v0-2: lists the transactional ids that this broker coordinates (KIP-664).

Filters by state and producer id. v1: by the duration of the open transaction (KIP-994). v2: by a regular expression for
transactional ids (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.group.consumer.patterns import InvalidPattern, compile_pattern
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_transactions as messages
from kbroker.server.access.permissions import allows_transactional_id
from kbroker.transaction.states import TransactionState

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

_STATES = {state.text for state in TransactionState}


def handle(context: Context, request: Request) -> Any:
    body = request.body
    states = set(body.state_filters)
    producer_ids = set(body.producer_id_filters)
    pattern = body.transactional_id_pattern
    try:
        matches = compile_pattern(pattern) if pattern else None
    except InvalidPattern:
        return messages.RESPONSE(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    now_ms = context.clock.now_ms()
    listed = [
        messages.TransactionState(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.text,
        )
        for driver in context.transactions.shards.loaded()
        for transactional_id, transaction in driver.shard.transactions.items()
        if (not states or transaction.state.text in states)
        and (not producer_ids or transaction.producer_id in producer_ids)
        and (body.duration_filter < 0 or now_ms - transaction.start_ms > body.duration_filter)
        and (matches is None or matches(transactional_id))
        and allows_transactional_id(context, request, AclOperation.DESCRIBE, transactional_id)
    ]
    return messages.RESPONSE(unknown_state_filters=sorted(states - _STATES), transaction_states=listed)
