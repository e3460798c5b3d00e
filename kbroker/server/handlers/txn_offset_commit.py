"""TxnOffsetCommit (28), v0-5: offsets that count once the transaction is committed.

v3: the member and its generation, which fence (KIP-447). v4: TRANSACTION_ABORTABLE. v5: the group's partition need not
have been added to the transaction, this does it (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import txn_offset_commit as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import allows_group
from kbroker.server.offset_answers import leave_out_what_cannot_be, refuse_rest, refuse_these
from kbroker.server.permissions import allows_transactional_id
from kbroker.server.transactional_records import told_of_records

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

ABORTABLE_SINCE: Final = 4
ADDS_SINCE: Final = 5

_Response = messages.RESPONSE.value
_Topic = messages.TxnOffsetCommitResponseTopic.value
_Partition = messages.TxnOffsetCommitResponsePartition.value


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_transactional_id(context, request, Operation.WRITE, body.transactional_id):
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows_group(context, request, Operation.READ, body.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = refuse(request, ErrorCode.NONE, None)
    leave_out_what_cannot_be(context, request, response)
    if not body.topics:
        return response
    try:
        driver = context.groups.find(body.group_id)
        driver.flush()
        records, refused = driver.shard.commit_in_transaction(body, driver.now())
        _admit(context, request)
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    refuse_these(response, refused)
    ticket = Ticket(request.reply, lambda code: request.reply(refuse_rest(response, code)))
    if records:
        driver.commit_in_transaction((body.producer_id, body.producer_epoch), records, ticket, response)
    else:
        driver.answer(ticket, response)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _Response(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(partition_index=each.partition_index, error_code=code) for each in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )


def _admit(context: Context, request: Request) -> None:
    body = request.body
    adds = request.version >= ADDS_SINCE
    if not adds and not context.config.transaction_partition_verification_enable:
        return
    partition = (CONSUMER_OFFSETS, context.groups.partition_for(body.group_id))
    producer = body.producer_id, body.producer_epoch
    code = context.transactions.admit(body.transactional_id, producer, partition, adds=adds)
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # which old clients try again
    if code:
        raise Refusal(told_of_records(code, request, ABORTABLE_SINCE))
