"""DescribeTransactions (65), v0: returns the state of transactional ids and their open transactions (KIP-664).

Partitions of topics that the client may not describe are left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_transactions as messages
from kbroker.server.access.permissions import allows_topic, allows_transactional_id
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    return respond_in_slices(
        context.clock,
        partial(_describe, context, request),
        request.body.transactional_ids,
        lambda states: messages.RESPONSE(transaction_states=states),
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    states = [_failure(transactional_id, code) for transactional_id in request.body.transactional_ids]
    return messages.RESPONSE(transaction_states=states)


def _failure(transactional_id: str, code: int) -> Any:
    return messages.TransactionState(transactional_id=transactional_id, error_code=code)


def _describe(context: Context, request: Request, transactional_id: str) -> Any:
    if not allows_transactional_id(context, request, AclOperation.DESCRIBE, transactional_id):
        return _failure(transactional_id, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id:
        return _failure(transactional_id, ErrorCode.INVALID_REQUEST)
    try:
        found = context.transactions.shards.find(transactional_id).shard.transactions.get(transactional_id)
    except Refusal as refusal:
        return _failure(transactional_id, refusal.code)
    if found is None:
        return _failure(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return messages.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.text,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            messages.TopicData(topic=topic, partitions=indexes)
            for topic, indexes in found.by_topic().items()
            if allows_topic(context, request, AclOperation.DESCRIBE, topic)
        ],
    )
