"""TxnOffsetCommit (28), v0-5: stores offsets that become visible when the transaction commits (KIP-98).

v3: the member id and generation, which fence (KIP-447). Before v4, TRANSACTION_ABORTABLE is sent as INVALID_TXN_STATE.
v5: adds the group's partition to the transaction; AddOffsetsToTxn is not needed (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import txn_offset_commit as messages
from kbroker.server.access.authorization import AclOperation
from kbroker.server.access.permissions import allows_transactional_id
from kbroker.server.coordinators.group_requests import allows_group
from kbroker.server.coordinators.offset_responses import (
    CommitResponseTypes,
    commit_response,
    refuse_partitions,
    refuse_rest,
    refuse_unknown_and_unauthorized,
)
from kbroker.server.coordinators.transactional_records import produce_error

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

ABORTABLE_SINCE: Final = 4
ADDS_SINCE: Final = 5

_TYPES: Final = CommitResponseTypes(
    messages.RESPONSE.value,
    messages.TxnOffsetCommitResponseTopic.value,
    messages.TxnOffsetCommitResponsePartition.value,
)


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_transactional_id(context, request, AclOperation.WRITE, body.transactional_id):
        raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows_group(context, request, AclOperation.READ, body.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = refuse(request, ErrorCode.NONE, None)
    refuse_unknown_and_unauthorized(context, request, response)
    if not body.topics:
        return response
    try:
        driver = context.groups.shards.find(body.group_id)
        driver.flush()
        records, refused = driver.shard.offsets.commit_in_transaction(body, driver.now())
        _admit(context, request)
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    refuse_partitions(response, refused)
    pending = PendingResponse(request.reply, lambda code: request.reply(refuse_rest(response, code)))
    if records:
        driver.commit_in_transaction((body.producer_id, body.producer_epoch), records, pending, response)
    else:
        driver.log.answer(pending, response)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return commit_response(request, code, _TYPES)


def _admit(context: Context, request: Request) -> None:
    body = request.body
    adds = request.version >= ADDS_SINCE
    if not adds and not context.config.transaction_partition_verification_enable:
        return
    partition = (CONSUMER_OFFSETS, context.groups.shards.partition_for(body.group_id))
    producer = body.producer_id, body.producer_epoch
    code = context.transactions.admit(body.transactional_id, producer, partition, adds=adds)
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and not adds:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # old clients retry on this one
    if code:
        raise Refusal(produce_error(code, request, ABORTABLE_SINCE))
