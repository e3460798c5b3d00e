"""What of a batch stays when its log is compacted: all of it, some of its records, an empty batch, or nothing.

An empty batch keeps what is known of a producer, or where the compacted part ends. Used in the cleaner's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kbroker.log.cleaned_transactions import CleanedTransactions
from kbroker.log.offset_map import OffsetMap
from kbroker.log.producer_replay import read_marker
from kbroker.log.producer_state import ProducerEntry
from kbroker.protocol.compression import compress, decompress
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    ReadBuffer,
    pack_batch,
    read_header,
)
from kbroker.protocol.record_spans import iter_spans
from kbroker.protocol.records import build_batch, iter_records

__all__ = ["BatchFilter", "Kept"]

Kept = tuple[ReadBuffer, int, int]
"""The batch, its last offset, its largest timestamp."""

_EMPTY_ATTRIBUTES: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | ATTRIBUTE_LOG_APPEND_TIME
_RECORDS_BETWEEN_TICKS: Final = 31
_MAX_INT64: Final = (1 << 63) - 1


class BatchFilter:
    """Batches come in the order of the log, each once."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, ProducerEntry],
        tick: Callable[[], None],
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self.transactions = transactions
        self._map = offset_map
        self._producers = producers
        self._tick = tick
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + delete_retention_ms

    def keep(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        self._tick()
        if header.is_control:
            return self._keep_control(batch, header)
        if self.transactions.is_aborted(header):
            return self._empty(header)
        return self._keep_data(batch, header)

    def _keep_control(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        """A marker that nobody needs stays for as long as a tombstone would: somebody may be reading just there."""
        may_drop = self.transactions.may_drop_marker(header, read_marker(batch))
        if not header.record_count or (may_drop and self._has_passed(header)):
            return self._empty(header)
        if may_drop and not header.has_delete_horizon:
            return self._with_horizon(batch, header, None)
        return batch, header.last_offset, header.max_timestamp

    def _keep_data(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        count = header.record_count
        if not count:
            return self._empty(header)
        data = decompress(header.codec, batch[HEADER_SIZE:])
        base_offset, latest, newest, tick = header.base_offset, self._map.latest_offset, self._map.get, self._tick
        has_passed = self._has_passed(header)
        has_tombstone = False
        largest_delta: int | None = None
        kept: list[int] = []  # start and end in turn: pairs would keep the garbage collector busy
        offsets: list[int] = []
        for number, (start, end, offset_delta, timestamp_delta, key, is_null) in enumerate(iter_spans(data, header)):
            if not number & _RECORDS_BETWEEN_TICKS:
                tick()
            offset = base_offset + offset_delta
            if offset <= latest and (key is None or newest(key) > offset or (is_null and has_passed)):
                continue
            has_tombstone |= is_null
            if largest_delta is None or timestamp_delta > largest_delta:
                largest_delta = timestamp_delta
            kept += (start, end)
            offsets.append(offset)
        if largest_delta is None:
            return self._empty(header)
        if has_tombstone and not header.has_delete_horizon:
            return self._with_horizon(batch, header, frozenset(offsets))
        if len(offsets) == count:
            return batch, header.last_offset, header.max_timestamp
        max_timestamp = header.max_timestamp
        if not header.is_log_append_time and abs(header.base_timestamp + largest_delta) <= _MAX_INT64:
            max_timestamp = header.base_timestamp + largest_delta
        # Records keep their bytes: what their offsets and timestamps are counted from stays in the header.
        records = b"".join([data[start:end] for start, end in zip(kept[::2], kept[1::2], strict=True)])
        new = header._replace(record_count=len(offsets), max_timestamp=max_timestamp)
        return pack_batch(new, compress(header.codec, records)), header.last_offset, max_timestamp

    def _with_horizon(self, batch: memoryview, header: BatchHeader, offsets: frozenset[int] | None) -> Kept:
        """Timestamps are counted from the horizon, so every record is written anew. `offsets` None: all stay."""
        records = [each for each in iter_records(batch) if offsets is None or each.offset in offsets]
        new = build_batch(
            records,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            codec=header.codec,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            log_append_time=header.max_timestamp if header.is_log_append_time else None,
            delete_horizon=self._new_horizon_ms,
        )
        return new, header.last_offset, read_header(new).max_timestamp

    def _has_passed(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self._now_ms

    def _empty(self, header: BatchHeader) -> Kept | None:
        if not self._is_wanted_empty(header):
            return None
        attributes = header.attributes & _EMPTY_ATTRIBUTES
        new = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
        return pack_batch(new, b""), header.last_offset, header.max_timestamp

    def _is_wanted_empty(self, header: BatchHeader) -> bool:
        """The last one of its producer tells the next sequence, or the epoch; the last of all where the log ends."""
        if header.last_offset + 1 == self._end_offset:
            return True
        producer = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return header.last_offset == producer.last_offset
        return header.is_control and header.producer_epoch == producer.epoch
