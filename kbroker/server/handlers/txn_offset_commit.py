"""TxnOffsetCommit (28), v0-5: stores offsets that become visible when the transaction commits (KIP-98).

v3: the member id and generation, which fence (KIP-447). Before v4, TRANSACTION_ABORTABLE is sent as INVALID_TXN_STATE.
v5: adds the group's partition to the transaction; AddOffsetsToTxn is not needed (KIP-890).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal, StorageFailure
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import txn_offset_commit as messages
from kbroker.server.access.permissions import allows_group, allows_transactional_id
from kbroker.server.coordinators.offset_responses import (
    CommitResponseTypes,
    check_topics,
    commit_response,
    refuse_partitions,
    refuse_rest,
)
from kbroker.server.coordinators.transactional_records import Verification, admit_producer, produce_error
from kbroker.server.requests.request import LongRequest
from kbroker.time_slice import finish_at_once, finish_in_slices

if TYPE_CHECKING:
    from kbroker.coordinator.shard_driver import ShardDriver
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
    steps = _steps(context, request)
    return finish_in_slices(context.clock, steps) if isinstance(request, LongRequest) else finish_at_once(steps)


def _steps(context: Context, request: Request) -> Generator[None, None, Any]:
    """Checks the topics in slices, and begins everything else in the last turn."""
    response = yield from check_topics(context, request, _TYPES)
    if not request.body.topics:
        return response
    try:
        validated = _validate(context, request)
        admission = _admit(context, request)
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    if isinstance(admission, Verification):
        return _commit_when_verified(context, request, response, admission)
    return _commit(request, response, admission, *validated)


async def _commit_when_verified(context: Context, request: Request, response: Any, admission: Verification) -> Any:
    """Commits after the answer of the coordinator. The group, or its coordinator, may have changed by then."""
    await admission.wait()
    try:
        validated = _validate(context, request)
        admitted = admission.verdict()
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    except StorageFailure:
        return refuse_rest(response, ErrorCode.NOT_COORDINATOR)
    return _commit(request, response, admitted, *validated)


def _validate(context: Context, request: Request) -> tuple[ShardDriver, Any, Any]:
    """Returns the shard of the group, the records to append, and the partitions that are refused.

    Raises Refusal if the group refuses the commit, or this broker does not coordinate the group.
    """
    driver = context.groups.shards.find(request.body.group_id)
    driver.flush()
    return driver, *driver.shard.offsets.commit_in_transaction(request.body, driver.now())


def _commit(
    request: Request, response: Any, admitted: ErrorCode, driver: ShardDriver, records: Any, refused: Any
) -> Any:
    if admitted:
        return refuse_rest(response, _known_error(request, admitted))
    body = request.body
    refuse_partitions(response, refused)
    pending = PendingResponse(request.reply, lambda code: request.reply(refuse_rest(response, code)))
    if records:
        driver.commit_in_transaction((body.producer_id, body.producer_epoch), records, pending, response)
    else:
        driver.log.answer(pending, response)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return commit_response(request, code, _TYPES)


def _admit(context: Context, request: Request) -> ErrorCode | Verification:
    """Asks the coordinator whether the group's partition is in the transaction.

    Raises Refusal if this broker does not lead that partition, or knows already that the producer may not write.
    """
    body = request.body
    partition = context.partitions.get(CONSUMER_OFFSETS, context.groups.shards.partition_for(body.group_id))
    if partition is None:
        raise Refusal(ErrorCode.NOT_COORDINATOR)
    producer = body.producer_id, body.producer_epoch
    try:
        return admit_producer(context, body.transactional_id, producer, partition, adds=request.version >= ADDS_SINCE)
    except StorageFailure:
        raise Refusal(ErrorCode.NOT_COORDINATOR) from None


def _known_error(request: Request, code: ErrorCode) -> ErrorCode:
    """Returns the code for the response: old clients retry on COORDINATOR_LOAD_IN_PROGRESS."""
    if code == ErrorCode.NETWORK_EXCEPTION or (
        code == ErrorCode.CONCURRENT_TRANSACTIONS and request.version < ADDS_SINCE
    ):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return produce_error(code, request, ABORTABLE_SINCE)
