"""Verifies that transactional records belong to an open transaction of their producer (KIP-890).

Once the partition has the transaction open, further records of it are not verified again. Never sees plain batches.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from kbroker.errors import StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import HEADER_SIZE
from kbroker.server.access.authorization import AclOperation
from kbroker.server.access.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["admit_records", "produce_error"]

ABORTABLE_SINCE: Final = 11
ADDS_SINCE: Final = 12

_producer_of = Struct(">qh").unpack_from
_PRODUCER_POSITION: Final = 43  # of the producer id in a batch; the producer epoch follows it

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def admit_records(context: Context, request: Request, partition: Partition, records: memoryview) -> ErrorCode:
    """Returns NONE if the records may be appended."""
    transactional_id = request.body.transactional_id
    if transactional_id is None or not allows_transactional_id(context, request, AclOperation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if len(records) < HEADER_SIZE:
        return ErrorCode.NONE  # the append will report that the batch is invalid
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
    # As Kafka: NOT_ENOUGH_REPLICAS is the error at which clients of all versions retry a Produce.
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _RETRIABLE else produce_error(code, request, ABORTABLE_SINCE)


def produce_error(code: ErrorCode, request: Request, abortable_since: int) -> ErrorCode:
    """Returns the error code that a client of the request's version knows."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and request.version < abortable_since:
        return ErrorCode.INVALID_TXN_STATE
    return code
