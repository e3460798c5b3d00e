"""Whether transactional records may enter a partition: only while their producer's transaction is open there (KIP-890).

A producer whose transaction the partition has open already is not asked again. Never sees plain batches.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from kbroker.errors import StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import HEADER_SIZE
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["admit_records", "told_of_records"]

ABORTABLE_SINCE: Final = 11
ADDS_SINCE: Final = 12

_producer_of = Struct(">qh").unpack_from
_PRODUCER_POSITION: Final = 43  # of a batch's producer id; its epoch follows

_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def admit_records(context: Context, request: Request, partition: Partition, records: memoryview) -> ErrorCode:
    transactional_id = request.body.transactional_id
    if transactional_id is None or not allows_transactional_id(context, request, Operation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if len(records) < HEADER_SIZE:
        return ErrorCode.NONE  # the log says what is wrong with it
    producer = _producer_of(records, _PRODUCER_POSITION)
    try:
        entry = partition.log.producers.entries.get(producer[0])
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if entry is not None and entry.current_txn_first_offset >= 0 and entry.epoch == producer[1]:
        return ErrorCode.NONE
    adds = request.version >= ADDS_SINCE
    if not adds and not context.config.transaction_partition_verification_enable:
        return ErrorCode.NONE
    code = context.transactions.admit(transactional_id, producer, (partition.topic, partition.index), adds=adds)
    # Old clients know no better way to be told that they should send it again.
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _TRY_AGAIN else told_of_records(code, request, ABORTABLE_SINCE)


def told_of_records(code: ErrorCode, request: Request, abortable_since: int) -> ErrorCode:
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and request.version < abortable_since:
        return ErrorCode.INVALID_TXN_STATE
    return code
