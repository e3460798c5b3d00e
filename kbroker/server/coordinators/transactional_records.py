"""Verifies that transactional records belong to an open transaction of their producer (KIP-890).

Once the partition has the transaction open, further records of it are not verified again. If the coordinator is on
another broker, the answer arrives later. The transaction may have ended by then, and records behind its marker would
never be committed or aborted. A marker replaces the producer's entry in the log, so the records are appended only if
the entry is still the same (Kafka's verification guard). Never sees plain batches.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import trio

from kbroker.coordinator.admission_requests import TransactionAdmission
from kbroker.errors import StorageFailure
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import HEADER_SIZE
from kbroker.server.access.permissions import allows_transactional_id

if TYPE_CHECKING:
    from kbroker.log.producers.producer_state import ProducerEntry
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["Verification", "admit_producer", "admit_records", "known_admission_error", "produce_error"]

ABORTABLE_SINCE: Final = 11
ADDS_SINCE: Final = 12

_producer_of = Struct(">qh").unpack_from
_PRODUCER_POSITION: Final = 43  # of the producer id in a batch; the producer epoch follows it

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Verification:
    """A question to the coordinator. `code` is its answer; None until the answer has arrived."""

    __slots__ = ("_answered", "_entry", "_partition", "_producer", "code")

    def __init__(self, partition: Partition, producer: tuple[int, int], entry: ProducerEntry | None) -> None:
        """`entry`: the producer's entry in the log at the time of the question."""
        self.code: ErrorCode | None = None
        self._partition = partition
        self._producer = producer
        self._entry = entry
        self._answered: trio.Event | None = None

    def answer(self, code: ErrorCode) -> None:
        self.code = code
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> None:
        if self.code is None:
            self._answered = trio.Event()
            await self._answered.wait()

    def verdict(self) -> ErrorCode:
        """Returns NONE if the producer may write now. Call it in the turn of the append."""
        assert self.code is not None
        if self.code:
            return self.code
        entry = self._partition.log.producers.entries.get(self._producer[0])
        if entry is self._entry or _is_open(entry, self._producer[1]):
            return ErrorCode.NONE
        return ErrorCode.CONCURRENT_TRANSACTIONS  # a marker has arrived: the client asks again


def admit_records(
    context: Context, request: Request, partition: Partition, records: memoryview
) -> ErrorCode | Verification:
    """Returns NONE if the records may be appended, or a Verification whose answer has not arrived yet."""
    transactional_id = request.body.transactional_id
    if transactional_id is None or not allows_transactional_id(context, request, AclOperation.WRITE, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if len(records) < HEADER_SIZE:
        return ErrorCode.NONE  # the append will report that the batch is invalid
    producer = _producer_of(records, _PRODUCER_POSITION)
    try:
        result = admit_producer(context, transactional_id, producer, partition, adds=request.version >= ADDS_SINCE)
    except StorageFailure:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return result if isinstance(result, Verification) else known_admission_error(result, request)


def admit_producer(
    context: Context, transactional_id: str, producer: tuple[int, int], partition: Partition, *, adds: bool
) -> ErrorCode | Verification:
    """Returns whether a producer (id, epoch) may write to a partition in its transaction: the coordinator's code.

    With `adds` the partition is added to the transaction. Raises StorageFailure if the log cannot be read.
    """
    entry = partition.log.producers.entries.get(producer[0])
    if _is_open(entry, producer[1]) or not (adds or context.config.transaction_partition_verification_enable):
        return ErrorCode.NONE
    verification = Verification(partition, producer, entry)
    admission = TransactionAdmission(transactional_id, *producer, adds, (partition.topic, partition.index))
    context.transactions.admit(admission, verification.answer)
    return verification if verification.code is None else verification.code


def _is_open(entry: ProducerEntry | None, epoch: int) -> bool:
    return entry is not None and entry.current_txn_first_offset >= 0 and entry.epoch == epoch


def known_admission_error(code: ErrorCode, request: Request) -> ErrorCode:
    """Returns the code for a Produce response.

    As Kafka: NOT_ENOUGH_REPLICAS is the error at which clients of all versions retry a Produce.
    """
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in _RETRIABLE else produce_error(code, request, ABORTABLE_SINCE)


def produce_error(code: ErrorCode, request: Request, abortable_since: int) -> ErrorCode:
    """Returns the error code that a client of the request's version knows."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and request.version < abortable_since:
        return ErrorCode.INVALID_TXN_STATE
    return code
