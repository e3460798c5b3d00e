"""State of a partition's idempotent and transactional producers: epoch, last five batches, and open transactions.

    sequence = last + 1              accepted
    first and last sequence known    duplicate: the result has the offsets of the first append
    producer not known               any first sequence accepted
    newer epoch                      must start at sequence 0
    older epoch                      INVALID_PRODUCER_EPOCH
    anything else                    OUT_OF_ORDER_SEQUENCE_NUMBER

Entries are immutable: a failed append is undone by restoring the old entry. Never reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import ATTRIBUTE_TRANSACTIONAL, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader

__all__ = [
    "MAX_SEQUENCE",
    "NO_COORDINATOR_EPOCH",
    "NO_OFFSET",
    "BatchTrace",
    "CompletedTransaction",
    "ProducerEntry",
    "ProducerState",
    "increment_sequence",
]

MAX_SEQUENCE: Final = (1 << 31) - 1
KEPT_BATCHES: Final = 5  # max.in.flight.requests.per.connection of an idempotent producer
NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1
_new_tuple: Final = tuple.__new__  # takes a third of the time of the NamedTuple constructor


class BatchTrace(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(NamedTuple):
    epoch: int
    batches: tuple[BatchTrace, ...] = ()
    timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    is_aborted: bool


def increment_sequence(sequence: int, delta: int) -> int:
    """Returns the sequence after `delta` more records. Wraps from 2^31 - 1 to 0."""
    return (sequence + delta) & MAX_SEQUENCE


class ProducerState:
    __slots__ = ("_ongoing", "_unreplicated", "entries", "first_unstable_offset")

    def __init__(self, entries: Iterable[tuple[int, ProducerEntry]] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = dict(entries)
        self._ongoing = {
            producer_id: entry.current_txn_first_offset
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset != NO_OFFSET
        }
        self._unreplicated: list[CompletedTransaction] = []  # ended, but the marker is not committed yet
        self.first_unstable_offset: int | None = None
        self._find_first_unstable()

    def check(self, header: BatchHeader) -> BatchTrace | ErrorCode | None:
        """Returns None to append the batch, the trace of an earlier append of it, or an error for the client."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        first = header.base_sequence
        if header.producer_epoch == entry.epoch:
            batches = entry.batches
            if first != ((batches[-1].last_sequence + 1) & MAX_SEQUENCE if batches else 0):
                last = increment_sequence(first, header.last_offset_delta)
                for trace in batches:
                    if trace.first_sequence == first and trace.last_sequence == last:
                        return trace
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        elif header.producer_epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        elif first != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if entry.current_txn_first_offset != NO_OFFSET and not header.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        return None

    def update(self, header: BatchHeader, base_offset: int) -> ProducerEntry | None:
        """Applies an accepted data batch. Returns the producer's previous entry, for `restore`."""
        producer_id = header.producer_id
        epoch = header.producer_epoch
        old = self.entries.get(producer_id)
        first = header.base_sequence
        delta = header.last_offset_delta
        timestamp = header.max_timestamp
        trace: BatchTrace = _new_tuple(
            BatchTrace,
            (
                first,
                (first + delta) & MAX_SEQUENCE if first >= 0 else first,
                base_offset,
                base_offset + delta,
                timestamp,
            ),
        )
        batches: tuple[BatchTrace, ...] = (trace,)
        coordinator_epoch, txn_first = NO_COORDINATOR_EPOCH, NO_OFFSET
        if old is not None:
            coordinator_epoch, txn_first = old.coordinator_epoch, old.current_txn_first_offset
            if old.epoch == epoch:
                batches = (*old.batches[1 - KEPT_BATCHES :], trace)
        if header.attributes & ATTRIBUTE_TRANSACTIONAL and txn_first == NO_OFFSET:
            txn_first = base_offset
            self._ongoing[producer_id] = base_offset
            if self.first_unstable_offset is None or base_offset < self.first_unstable_offset:
                self.first_unstable_offset = base_offset
        self.entries[producer_id] = _new_tuple(ProducerEntry, (epoch, batches, timestamp, coordinator_epoch, txn_first))
        return old

    def check_marker(self, producer_id: int, *, producer_epoch: int, coordinator_epoch: int) -> ErrorCode | None:
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        if producer_epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return None

    def end_transaction(
        self, header: BatchHeader, *, offset: int, coordinator_epoch: int, is_abort: bool
    ) -> CompletedTransaction | None:
        """Applies a marker. Returns None if the transaction has no records in this partition."""
        producer_id = header.producer_id
        old = self.entries.get(producer_id)
        epoch = header.producer_epoch
        batches = old.batches if old is not None and old.epoch == epoch else ()
        self.entries[producer_id] = ProducerEntry(epoch, batches, header.max_timestamp, coordinator_epoch, NO_OFFSET)
        first_offset = self._ongoing.pop(producer_id, NO_OFFSET)
        if first_offset == NO_OFFSET:
            return None
        completed = CompletedTransaction(producer_id, first_offset, offset, is_abort)
        self._unreplicated.append(completed)
        self._find_first_unstable()
        return completed

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Returns the first offset of an open transaction, or the offset after the marker. For the aborted index."""
        others = [first for first in self._ongoing.values() if first < completed.last_offset]
        return min(others, default=completed.last_offset + 1)

    def on_high_watermark(self, high_watermark: int) -> None:
        if self._unreplicated:
            self._unreplicated = [ended for ended in self._unreplicated if ended.last_offset >= high_watermark]
            self._find_first_unstable()

    def restore(self, producer_id: int, old: ProducerEntry | None) -> None:
        """Undoes the update of a batch that was not written."""
        if old is None:
            self.entries.pop(producer_id, None)
        else:
            self.entries[producer_id] = old
        if old is None or old.current_txn_first_offset == NO_OFFSET:
            self._ongoing.pop(producer_id, None)
        else:
            self._ongoing[producer_id] = old.current_txn_first_offset
            self._unreplicated = [
                ended
                for ended in self._unreplicated
                if (ended.producer_id, ended.first_offset) != (producer_id, old.current_txn_first_offset)
            ]
        self._find_first_unstable()

    def expire(self, *, now_ms: int, expiration_ms: int) -> None:
        """Removes producers without a batch for `expiration_ms`, except those with an open transaction."""
        silent = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.timestamp >= expiration_ms and producer_id not in self._ongoing
        ]
        for producer_id in silent:
            del self.entries[producer_id]

    def _find_first_unstable(self) -> None:
        firsts = [*self._ongoing.values(), *(ended.first_offset for ended in self._unreplicated)]
        self.first_unstable_offset = min(firsts, default=None)
