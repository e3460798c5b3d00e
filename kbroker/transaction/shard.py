"""The transactional ids of one partition of `__transaction_state`: takes requests, returns TransactionResults.

`transactions` is the state in the log; only `replay` changes it. The epoch before the last bump is soft state, lost at
a failover as in Kafka: it distinguishes a retry of InitProducerId from a zombie (KIP-360).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.transaction.records import (
    NO_EPOCH,
    NO_ID,
    NO_TIMESTAMP,
    Transaction,
    read_key,
    read_value,
    transaction_record,
    transaction_tombstone,
)
from kbroker.transaction.result import NeedsProducerId, TransactionResult
from kbroker.transaction.states import COMPLETE, MAY_FOLLOW, PREPARED, TransactionState

__all__ = ["MAX_EPOCH", "TransactionShard"]

MAX_EPOCH: Final = (1 << 15) - 1  # used only to fence a producer; a producer's own epochs end one before
_EPOCH_BUMP_VERSION: Final = 2
_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()

_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING


class TransactionShard:
    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._last_epochs: dict[str, int] = {}

    # The log

    def replay(self, records: Iterable[KeyAndValue]) -> None:
        """Replays records. Raises UnreadableTransaction if one is malformed: it and the later ones have no effect."""
        for key, value in records:
            transactional_id = read_key(key)
            if value is None:
                self.transactions.pop(transactional_id, None)
                self._last_epochs.pop(transactional_id, None)
            else:
                self.transactions[transactional_id] = read_value(value)

    def record(self, transactional_id: str, result: TransactionResult) -> KeyAndValue:
        assert result.updated is not None
        return transaction_record(transactional_id, result.updated)

    def on_appended(self, transactional_id: str, result: TransactionResult) -> None:
        """Updates soft state, after the record of a result was appended and replayed."""
        if result.last_epoch == NO_EPOCH:
            self._last_epochs.pop(transactional_id, None)
        elif result.last_epoch is not None:
            self._last_epochs[transactional_id] = result.last_epoch

    # Producers

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, new_id: int | None, now_ms: int
    ) -> TransactionResult:
        """Handles an InitProducerId. `expected`: id and epoch of a producer that wants to keep them.

        Raises NeedsProducerId if a new producer id is needed and `new_id` is None.
        """
        current = self.transactions.get(transactional_id)
        if current is None:
            if new_id is None:
                raise NeedsProducerId
            created = Transaction(new_id, 0, timeout_ms, update_ms=now_ms)
            return TransactionResult(ErrorCode.NONE, new_id, 0, created, NO_EPOCH)
        if expected is not None and not _may_continue(current, expected):
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        if current.state in PREPARED:
            return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.state is _ONGOING:
            # The client retries, and then gets the next epoch. No producer ever gets the epoch that fences.
            return self.abort_fencing(transactional_id, now_ms)._replace(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        epoch = current.producer_epoch
        if _is_exhausted(epoch) and (expected is None or expected[1] == epoch):
            if new_id is None:
                raise NeedsProducerId
            last_epoch = NO_EPOCH if expected is None else epoch
            rotated = current._replace(previous_producer_id=current.producer_id)
            return self._initialized(rotated, new_id, 0, timeout_ms, now_ms, last_epoch)
        if expected is None:
            return self._initialized(current, current.producer_id, epoch + 1, timeout_ms, now_ms, NO_EPOCH)
        if expected[1] == epoch:
            return self._initialized(current, current.producer_id, epoch + 1, timeout_ms, now_ms, epoch)
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        if expected[1] == last_epoch:  # a retry: the bump has happened
            return self._initialized(current, current.producer_id, epoch, timeout_ms, now_ms, last_epoch)
        return TransactionResult(ErrorCode.PRODUCER_FENCED)

    def _initialized(
        self, current: Transaction, producer_id: int, epoch: int, timeout_ms: int, now_ms: int, last_epoch: int
    ) -> TransactionResult:
        updated = _entered(
            current,
            _EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=_NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
        )
        return TransactionResult(ErrorCode.NONE, producer_id, epoch, updated, last_epoch)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        *,
        client_version: int = 0,
    ) -> TransactionResult:
        """Adds partitions to the transaction, and begins it if none is open."""
        current = self.transactions.get(transactional_id)
        code = _check(current, producer_id, epoch)
        if code or current is None:
            return TransactionResult(code)
        added = frozenset(partitions)
        is_ongoing = current.state is _ONGOING
        if is_ongoing and added <= current.partitions:
            return TransactionResult()
        updated = _entered(
            current,
            _ONGOING,
            now_ms,
            partitions=current.partitions | added,
            start_ms=current.start_ms if is_ongoing else now_ms,
            client_version=client_version,
        )
        return TransactionResult(updated=updated)

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition) -> ErrorCode:
        """Returns NONE if the partition is part of the producer's open transaction."""
        current = self.transactions.get(transactional_id)
        code = _check(current, producer_id, epoch)
        if code or current is None:
            return code
        is_in = current.state is _ONGOING and partition in current.partitions
        return ErrorCode.NONE if is_in else ErrorCode.TRANSACTION_ABORTABLE

    # The end of a transaction

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        is_commit: bool,
        now_ms: int,
        client_version: int = 0,
        new_id: int | None = None,
    ) -> TransactionResult:
        """Ends a transaction. `client_version` 2 also bumps the epoch, so that a late EndTxn cannot end the next.

        Raises NeedsProducerId if the epoch is exhausted and `new_id` is None.
        """
        current = self.transactions.get(transactional_id)
        if current is None:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if client_version >= _EPOCH_BUMP_VERSION:
            return _end_bumping(current, producer_id, epoch, is_commit, now_ms, client_version, new_id)
        if current.producer_id != producer_id:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if current.producer_epoch != epoch:
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        prepared, completed = _outcome(is_commit)
        if current.state is _ONGOING:
            return TransactionResult(updated=_entered(current, prepared, now_ms, client_version=client_version))
        if current.state is completed:
            return TransactionResult()
        is_same_end = current.state is prepared
        return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS if is_same_end else ErrorCode.INVALID_TXN_STATE)

    def abort_fencing(self, transactional_id: str, now_ms: int) -> TransactionResult:
        """Aborts an open transaction and fences its producer: after a timeout, or for a new producer of the same id."""
        current = self.transactions[transactional_id]
        updated = _entered(
            current,
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=current.producer_epoch + 1,
            client_version=_EPOCH_BUMP_VERSION,  # as Kafka, for clients of any version
        )
        return TransactionResult(updated=updated, last_epoch=NO_EPOCH)

    def complete(self, transactional_id: str, now_ms: int) -> TransactionResult:
        """Completes a prepared transaction, after all markers were written."""
        current = self.transactions[transactional_id]
        _, completed = _outcome(current.state is TransactionState.PREPARE_COMMIT)
        updated = _entered(current, completed, now_ms, partitions=_NO_PARTITIONS)
        if current.next_producer_id != NO_ID:  # the epochs of the old id were exhausted when the transaction ended
            updated = updated._replace(
                producer_id=current.next_producer_id,
                producer_epoch=0,
                previous_producer_id=current.producer_id,
                next_producer_id=NO_ID,
            )
        return TransactionResult(updated=updated)

    # Background work

    def prepared(self) -> list[str]:
        """Returns the transactional ids whose markers are not written yet."""
        return [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transaction.state in PREPARED
        ]

    def timed_out(self, now_ms: int) -> list[str]:
        return [
            transactional_id
            for transactional_id, transaction in self.transactions.items()
            if transaction.state is _ONGOING and transaction.start_ms + transaction.timeout_ms < now_ms
        ]

    def is_ongoing(self, transactional_id: str) -> bool:
        current = self.transactions.get(transactional_id)
        return current is not None and current.state is _ONGOING

    def expire(self, *, now_ms: int, expiration_ms: int) -> Iterator[KeyAndValue]:
        """Yields the tombstones of ids without an open transaction that were not updated for `expiration_ms`."""
        for transactional_id, transaction in self.transactions.items():
            is_idle = transaction.state is _EMPTY or transaction.state in COMPLETE
            if is_idle and transaction.update_ms <= now_ms - expiration_ms:
                yield transaction_tombstone(transactional_id)


def _may_continue(current: Transaction, expected: tuple[int, int]) -> bool:
    """Whether the expected producer id is the current one, or the previous one.

    The previous one is valid if its epochs were exhausted: then the response with the new producer id was lost.
    """
    producer_id, epoch = expected
    return producer_id == current.producer_id or (producer_id == current.previous_producer_id and _is_exhausted(epoch))


def _is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1


def _check(current: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    if current is None or current.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if current.state in PREPARED else ErrorCode.NONE


def _outcome(is_commit: bool) -> tuple[TransactionState, TransactionState]:
    if is_commit:
        return TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
    return TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT


def _end_bumping(
    current: Transaction,
    producer_id: int,
    epoch: int,
    is_commit: bool,
    now_ms: int,
    client_version: int,
    new_id: int | None,
) -> TransactionResult:
    is_bumped = current.client_version >= _EPOCH_BUMP_VERSION
    is_rotated = current.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and current.producer_epoch == 0
    is_retry = (is_bumped and current.producer_epoch == epoch + 1) or (is_rotated and current.state in COMPLETE)
    if current.producer_id != producer_id and not is_rotated:
        return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.state in PREPARED:
        is_current = is_retry
    elif current.state in COMPLETE:
        is_current = is_retry or current.producer_epoch == epoch
    else:
        is_current, is_retry = current.producer_epoch == epoch, False
    if not is_current:
        return TransactionResult(ErrorCode.PRODUCER_FENCED)
    prepared, completed = _outcome(is_commit)
    if current.state in PREPARED:
        is_same_end = current.state is prepared
        return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS if is_same_end else ErrorCode.INVALID_TXN_STATE)
    if is_retry:
        if current.state is completed:
            return TransactionResult(ErrorCode.NONE, current.producer_id, current.producer_epoch)
        return TransactionResult(ErrorCode.INVALID_TXN_STATE)
    if is_commit and current.state is not _ONGOING:
        return TransactionResult(ErrorCode.INVALID_TXN_STATE)
    # An abort without an open transaction still bumps the epoch.
    next_id = NO_ID
    if _is_exhausted(epoch):
        if new_id is None:
            raise NeedsProducerId
        next_id = new_id
    updated = _entered(
        current,
        prepared,
        now_ms,
        producer_epoch=epoch + 1,
        next_producer_id=next_id,
        client_version=client_version,
        start_ms=current.start_ms if current.state is _ONGOING else now_ms,
    )
    next_producer = (current.producer_id, epoch + 1) if next_id == NO_ID else (next_id, 0)
    return TransactionResult(ErrorCode.NONE, *next_producer, updated, epoch)


def _entered(current: Transaction, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
    assert current.state in MAY_FOLLOW[state], f"{state.text} after {current.state.text}"
    entered: Transaction = current._replace(state=state, update_ms=now_ms, **changes)  # type: ignore[arg-type]
    return entered
