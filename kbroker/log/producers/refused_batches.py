"""Batches of idempotent producers that were refused with a retriable error and have not arrived again.

A client that has several requests in flight sends later batches before it knows of the refusal. Apache Kafka answers
them with OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then raises its epoch and renumbers all its batches, also those that
are in the log and not acknowledged yet: they are written twice (its issue 4953). Here the later batches get the code of
the refusal, until the refused one has arrived or a minute has passed. The client retries them in order.

One bounded table for all partitions of a broker: without an entry a producer gets Kafka's answer. Never reads a clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.producers.producer_state import MAX_SEQUENCE, ProducerState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import HEADER_SIZE, MAGIC_POSITION, BatchHeader, ReadBuffer, read_header

__all__ = ["RefusedBatches"]

_MAX_PRODUCERS: Final = 10_000
_KEPT_MS: Final = 60_000
_AHEAD: Final = 1 << 30  # sequences wrap: a sequence that is further ahead than this is behind

_Key = tuple[bytes, int, int, int]  # topic id, partition, producer id, producer epoch


class _Refused(NamedTuple):
    first: int
    """Lowest refused sequence."""
    last: int
    """Highest refused sequence, of the first record of its batch."""
    code: ErrorCode
    expires_ms: int


class RefusedBatches:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[_Key, _Refused] = {}
        """Sorted by expiry. The hot path checks only whether it is empty."""

    def note(self, topic_id: bytes, index: int, records: ReadBuffer | None, code: ErrorCode, now_ms: int) -> None:
        """Remembers a batch that is refused with a retriable code. Other data than a producer's batch is ignored."""
        header = _producer_header(records)
        if header is not None:
            self._note((topic_id, index, header.producer_id, header.producer_epoch), header.base_sequence, code, now_ms)

    def _note(self, key: _Key, sequence: int, code: ErrorCode, now_ms: int) -> None:
        known = self.entries.pop(key, None)
        if known is None and len(self.entries) >= _MAX_PRODUCERS:
            del self.entries[next(iter(self.entries))]
        first = last = sequence
        if known is not None and now_ms < known.expires_ms:
            first = known.first if _is_ahead(sequence, known.first) else sequence
            last = sequence if _is_ahead(sequence, known.last) else known.last
        self.entries[key] = _Refused(first, last, code, now_ms + _KEPT_MS)

    def check(
        self, topic_id: bytes, index: int, records: ReadBuffer | None, producers: ProducerState, now_ms: int
    ) -> ErrorCode | None:
        """Returns the code for a batch that must wait for a refused one of its producer; None for any other batch."""
        header = _producer_header(records)
        if header is None:
            return None
        key = (topic_id, index, header.producer_id, header.producer_epoch)
        refused = self.entries.get(key)
        if refused is None:
            return None
        expected = _expected(producers, header, refused)
        if now_ms >= refused.expires_ms or expected is None or _is_ahead(expected, refused.last):
            del self.entries[key]  # too old, fenced, or everything that was refused has arrived
            return None
        if not _is_ahead(header.base_sequence, expected):
            return None  # the batch that is expected, or one that is in the log
        self._note(key, header.base_sequence, refused.code, now_ms)
        return refused.code

    def expire(self, now_ms: int) -> None:
        """Drops old entries. Called about once a second."""
        while self.entries:
            key, refused = next(iter(self.entries.items()))
            if now_ms < refused.expires_ms:
                return
            del self.entries[key]


def _expected(producers: ProducerState, header: BatchHeader, refused: _Refused) -> int | None:
    """Returns the next sequence of the producer; None if a newer epoch has fenced it."""
    entry = producers.entries.get(header.producer_id)
    if entry is None:
        return refused.first  # the log would accept any sequence
    if entry.epoch > header.producer_epoch:
        return None
    if entry.epoch < header.producer_epoch or not entry.batches:
        return 0
    return (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE


def _is_ahead(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) & MAX_SEQUENCE < _AHEAD


def _producer_header(records: ReadBuffer | None) -> BatchHeader | None:
    if records is None or len(records) < HEADER_SIZE or records[MAGIC_POSITION] != 2:
        return None
    header = read_header(records)
    return header if header.producer_id >= 0 and header.base_sequence >= 0 else None
