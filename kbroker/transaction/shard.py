"""All transactional ids of one partition of `__transaction_state`: requests in, Steps out.

What the log says is in `transactions`, and only `replay` changes it. Soft, and lost with the shard as Kafka loses it:
the epoch before the last bump, by which a retry of InitProducerId is told from a zombie (KIP-360).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import (
    NO_EPOCH,
    NO_ID,
    NO_TIMESTAMP,
    KeyAndValue,
    TopicPartition,
    Transaction,
    read_key,
    read_value,
    transaction_record,
    transaction_tombstone,
)
from kbroker.transaction.states import COMPLETE, MAY_FOLLOW, PREPARED, TransactionState
from kbroker.transaction.step import NeedsProducerId, Step

__all__ = ["MAX_EPOCH", "TransactionShard"]

MAX_EPOCH: Final = (1 << 15) - 1  # only ever given to a fence; a producer's own epochs end one before
_BUMPED_SINCE: Final = 2
_NOTHING: Final[frozenset[TopicPartition]] = frozenset()

_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING


class TransactionShard:
    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._last_epochs: dict[str, int] = {}

    # The log

    def replay(self, records: Iterable[KeyAndValue]) -> None:
        """UnreadableTransaction: nothing of that record and those behind it has changed."""
        for key, value in records:
            transactional_id = read_key(key)
            if value is None:
                self.transactions.pop(transactional_id, None)
                self._last_epochs.pop(transactional_id, None)
            else:
                self.transactions[transactional_id] = read_value(value)

    def record(self, transactional_id: str, step: Step) -> KeyAndValue:
        assert step.becomes is not None
        return transaction_record(transactional_id, step.becomes)

    def on_appended(self, transactional_id: str, step: Step) -> None:
        """The step's record is in the log, and replayed."""
        if step.last_epoch == NO_EPOCH:
            self._last_epochs.pop(transactional_id, None)
        elif step.last_epoch is not None:
            self._last_epochs[transactional_id] = step.last_epoch

    # Producers

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, new_id: int | None, now_ms: int
    ) -> Step:
        """`expected`: the id and epoch that a producer has and wants to go on with. NeedsProducerId if there is no
        `new_id` and one is called for."""
        now = self.transactions.get(transactional_id)
        if now is None:
            if new_id is None:
                raise NeedsProducerId
            fresh = Transaction(new_id, 0, timeout_ms, update_ms=now_ms)
            return Step(ErrorCode.NONE, new_id, 0, fresh, NO_EPOCH)
        if expected is not None and not _may_continue(now, expected):
            return Step(ErrorCode.PRODUCER_FENCED)
        if now.state in PREPARED:
            return Step(ErrorCode.CONCURRENT_TRANSACTIONS)
        if now.state is _ONGOING:
            # The client comes again, and then gets one more epoch: nobody is ever told the one that fences.
            return self.abort_fencing(transactional_id, now_ms)._replace(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        epoch = now.producer_epoch
        if _is_exhausted(epoch) and (expected is None or expected[1] == epoch):
            if new_id is None:
                raise NeedsProducerId
            last_epoch = NO_EPOCH if expected is None else epoch
            rotated = now._replace(previous_producer_id=now.producer_id)
            return self._initialized(rotated, new_id, 0, timeout_ms, now_ms, last_epoch)
        if expected is None:
            return self._initialized(now, now.producer_id, epoch + 1, timeout_ms, now_ms, NO_EPOCH)
        if expected[1] == epoch:
            return self._initialized(now, now.producer_id, epoch + 1, timeout_ms, now_ms, epoch)
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        if expected[1] == last_epoch:  # a retry: the bump has happened
            return self._initialized(now, now.producer_id, epoch, timeout_ms, now_ms, last_epoch)
        return Step(ErrorCode.PRODUCER_FENCED)

    def _initialized(
        self, now: Transaction, producer_id: int, epoch: int, timeout_ms: int, now_ms: int, last_epoch: int
    ) -> Step:
        becomes = _entered(
            now,
            _EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=_NOTHING,
            start_ms=NO_TIMESTAMP,
        )
        return Step(ErrorCode.NONE, producer_id, epoch, becomes, last_epoch)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        *,
        client_version: int = 0,
    ) -> Step:
        """Begins a transaction if there is none."""
        now = self.transactions.get(transactional_id)
        code = _check(now, producer_id, epoch)
        if code or now is None:
            return Step(code)
        added = frozenset(partitions)
        is_ongoing = now.state is _ONGOING
        if is_ongoing and added <= now.partitions:
            return Step()
        becomes = _entered(
            now,
            _ONGOING,
            now_ms,
            partitions=now.partitions | added,
            start_ms=now.start_ms if is_ongoing else now_ms,
            client_version=client_version,
        )
        return Step(becomes=becomes)

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition) -> ErrorCode:
        """Whether a partition may take this producer's records into the transaction that it has open."""
        now = self.transactions.get(transactional_id)
        code = _check(now, producer_id, epoch)
        if code or now is None:
            return code
        is_in = now.state is _ONGOING and partition in now.partitions
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
    ) -> Step:
        """`client_version` 2: the epoch grows, so that what was sent late can never end the next transaction."""
        now = self.transactions.get(transactional_id)
        if now is None:
            return Step(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if client_version >= _BUMPED_SINCE:
            return _end_bumping(now, producer_id, epoch, is_commit, now_ms, client_version, new_id)
        if now.producer_id != producer_id:
            return Step(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if now.producer_epoch != epoch:
            return Step(ErrorCode.PRODUCER_FENCED)
        prepared, completed = _outcome(is_commit)
        if now.state is _ONGOING:
            return Step(becomes=_entered(now, prepared, now_ms, client_version=client_version))
        if now.state is completed:
            return Step()
        is_under_way = now.state is prepared
        return Step(ErrorCode.CONCURRENT_TRANSACTIONS if is_under_way else ErrorCode.INVALID_TXN_STATE)

    def abort_fencing(self, transactional_id: str, now_ms: int) -> Step:
        """An open transaction, and its producer: it took too long, or another one has come in its place."""
        now = self.transactions[transactional_id]
        becomes = _entered(
            now,
            TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=now.producer_epoch + 1,
            client_version=_BUMPED_SINCE,  # as Kafka writes it, whatever the client is
        )
        return Step(becomes=becomes, last_epoch=NO_EPOCH)

    def complete(self, transactional_id: str, now_ms: int) -> Step:
        """Every marker is written."""
        now = self.transactions[transactional_id]
        _, completed = _outcome(now.state is TransactionState.PREPARE_COMMIT)
        becomes = _entered(now, completed, now_ms, partitions=_NOTHING)
        if now.next_producer_id != NO_ID:
            becomes = becomes._replace(
                producer_id=now.next_producer_id,
                producer_epoch=0,
                previous_producer_id=now.producer_id,
                next_producer_id=NO_ID,
            )
        return Step(becomes=becomes)

    # Looking after them

    def prepared(self) -> list[str]:
        """Those that wait for markers, after a load."""
        return [each for each, transaction in self.transactions.items() if transaction.state in PREPARED]

    def timed_out(self, now_ms: int) -> list[str]:
        return [
            each
            for each, transaction in self.transactions.items()
            if transaction.state is _ONGOING and transaction.start_ms + transaction.timeout_ms < now_ms
        ]

    def is_ongoing(self, transactional_id: str) -> bool:
        now = self.transactions.get(transactional_id)
        return now is not None and now.state is _ONGOING

    def expire(self, now_ms: int, expiration_ms: int) -> Iterator[KeyAndValue]:
        """Tombstones of those that have been idle for so long."""
        for transactional_id, each in self.transactions.items():
            if (each.state is _EMPTY or each.state in COMPLETE) and each.update_ms <= now_ms - expiration_ms:
                yield transaction_tombstone(transactional_id)


def _may_continue(now: Transaction, expected: tuple[int, int]) -> bool:
    """The id that it names is the current one; or the one before, if that was used up and the answer was lost."""
    producer_id, epoch = expected
    return producer_id == now.producer_id or (producer_id == now.previous_producer_id and _is_exhausted(epoch))


def _is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1


def _check(now: Transaction | None, producer_id: int, epoch: int) -> ErrorCode:
    if now is None or now.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if now.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if now.state in PREPARED else ErrorCode.NONE


def _outcome(is_commit: bool) -> tuple[TransactionState, TransactionState]:
    if is_commit:
        return TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
    return TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT


def _end_bumping(
    now: Transaction,
    producer_id: int,
    epoch: int,
    is_commit: bool,
    now_ms: int,
    client_version: int,
    new_id: int | None,
) -> Step:
    is_bumped = now.client_version >= _BUMPED_SINCE
    is_overflown = now.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and now.producer_epoch == 0
    is_retry = (is_bumped and now.producer_epoch == epoch + 1) or (is_overflown and now.state in COMPLETE)
    if now.producer_id != producer_id and not is_overflown:
        return Step(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if now.state in PREPARED:
        is_current = is_retry
    elif now.state in COMPLETE:
        is_current = is_retry or now.producer_epoch == epoch
    else:
        is_current, is_retry = now.producer_epoch == epoch, False
    if not is_current:
        return Step(ErrorCode.PRODUCER_FENCED)
    prepared, completed = _outcome(is_commit)
    if now.state in PREPARED:
        is_under_way = now.state is prepared
        return Step(ErrorCode.CONCURRENT_TRANSACTIONS if is_under_way else ErrorCode.INVALID_TXN_STATE)
    if is_retry:
        if now.state is completed:
            return Step(ErrorCode.NONE, now.producer_id, now.producer_epoch)
        return Step(ErrorCode.INVALID_TXN_STATE)
    if is_commit and now.state is not _ONGOING:
        return Step(ErrorCode.INVALID_TXN_STATE)
    # An abort of nothing has its use: the epoch grows.
    next_id = NO_ID
    if _is_exhausted(epoch):
        if new_id is None:
            raise NeedsProducerId
        next_id = new_id
    becomes = _entered(
        now,
        prepared,
        now_ms,
        producer_epoch=epoch + 1,
        next_producer_id=next_id,
        client_version=client_version,
        start_ms=now.start_ms if now.state is _ONGOING else now_ms,
    )
    told = (now.producer_id, epoch + 1) if next_id == NO_ID else (next_id, 0)
    return Step(ErrorCode.NONE, *told, becomes, epoch)


def _entered(now: Transaction, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
    assert now.state in MAY_FOLLOW[state], f"{state.text} after {now.state.text}"
    entered: Transaction = now._replace(state=state, update_ms=now_ms, **changes)  # type: ignore[arg-type]
    return entered
