"""Decides which part of a batch compaction keeps: all of it, some records, an empty batch, or nothing.

An empty batch keeps a producer's last sequence, or the end offset of the compacted part. Compiled with the hot path.
Used only in a cleaner's thread or process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kbroker.log.cleaning.cleaned_transactions import CleanedTransactions
from kbroker.log.cleaning.offset_map import RECORDS_BETWEEN_TICKS, OffsetMap
from kbroker.log.producers.producer_replay import read_marker
from kbroker.log.producers.producer_state import ProducerEntry
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
from kbroker.protocol.record_walk import RecordCursor
from kbroker.protocol.records import build_batch, iter_records

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["BatchFilter", "Kept"]

Kept = tuple[ReadBuffer, int, int]
"""Batch, its last offset, its largest timestamp."""

_EMPTY_ATTRIBUTES: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | ATTRIBUTE_LOG_APPEND_TIME
_MAX_INT64: Final = (1 << 63) - 1


class BatchFilter:
    """`keep` is called once for each batch, in the order of the log."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, ProducerEntry],
        tick: Callable[[], None],
        *,
        first_mapped_offset: int,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """`first_mapped_offset`: all records from it to the latest offset of the map are in the map."""
        self.transactions = transactions
        self._map = offset_map
        self._producers = producers
        self._tick = tick
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._new_horizon_ms = min(now_ms + delete_retention_ms, _MAX_INT64)
        self._first_mapped = first_mapped_offset
        # A look at a flag costs a tenth of a look at the map, which needs the key.
        self._is_newest = offset_map.flags_of_newest(first_mapped_offset, tick)

    def keep(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        """Returns the batch to write in place of this one; None to drop it."""
        self._tick()
        if header.is_control:
            return self._keep_control(batch, header)
        if self.transactions.is_aborted(header):
            return self._empty(header)
        return self._keep_data(batch, header)

    def _keep_control(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        """Keeps a marker that is not needed any more until its delete horizon: a consumer may be reading there."""
        may_drop = self.transactions.may_drop_marker(header, read_marker(batch))
        if not header.record_count or (may_drop and self._has_passed(header)):
            return self._empty(header)
        if may_drop and not header.has_delete_horizon:
            return self._with_horizon(batch, header, None)
        return batch, header.last_offset, header.max_timestamp

    def _keep_data(self, batch: memoryview, header: BatchHeader) -> Kept | None:
        count = header.record_count
        if not count or self._has_no_newest(header):
            return self._empty(header)
        data = decompress(header.codec, batch[HEADER_SIZE:])
        offset_map, tick = self._map, self._tick
        base_offset: i64 = header.base_offset
        latest: i64 = offset_map.latest_offset
        first_mapped: i64 = self._first_mapped
        is_newest = self._is_newest
        flag_count: i64 = len(is_newest)
        offset: i64
        flag_at: i64
        has_passed = self._has_passed(header)
        has_tombstone = False
        largest_delta: int | None = None
        pieces: list[bytes] = []  # of records that are kept and follow each other
        piece_start = piece_end = 0
        offsets: list[int] = []
        cursor = RecordCursor(data)
        last_offset_delta = header.last_offset_delta
        for number in range(count):
            if not number & RECORDS_BETWEEN_TICKS:
                tick()
            cursor.advance_within(last_offset_delta)
            offset = base_offset + cursor.offset_delta
            is_null = cursor.value_end < 0
            if offset <= latest:
                if is_null and has_passed:
                    continue
                flag_at = offset - first_mapped
                if 0 <= flag_at < flag_count:
                    if not is_newest[flag_at]:
                        continue
                else:
                    key = cursor.key()
                    if key is None or offset_map.get(key) > offset:
                        continue
            has_tombstone = has_tombstone or is_null
            if largest_delta is None or cursor.timestamp_delta > largest_delta:
                largest_delta = cursor.timestamp_delta
            if cursor.start != piece_end:
                pieces.append(data[piece_start:piece_end])
                piece_start = cursor.start
            piece_end = cursor.end
            offsets.append(offset)
        cursor.check_end()
        pieces.append(data[piece_start:piece_end])
        if largest_delta is None:
            return self._empty(header)
        if has_tombstone and not header.has_delete_horizon:
            return self._with_horizon(batch, header, frozenset(offsets))
        if len(offsets) == count:
            return batch, header.last_offset, header.max_timestamp
        max_timestamp = header.max_timestamp
        if not header.is_log_append_time and abs(header.base_timestamp + largest_delta) <= _MAX_INT64:
            max_timestamp = header.base_timestamp + largest_delta
        # The bytes of records stay: the header keeps the base of their offsets and timestamps.
        new = header._replace(record_count=len(offsets), max_timestamp=max_timestamp)
        return pack_batch(new, compress(header.codec, b"".join(pieces))), header.last_offset, max_timestamp

    def _has_no_newest(self, header: BatchHeader) -> bool:
        """Whether every record of the batch has a newer one, or no key: all were mapped, and none is flagged."""
        start = header.base_offset - self._first_mapped
        end = header.last_offset + 1 - self._first_mapped
        return start >= 0 and end <= len(self._is_newest) and self._is_newest.find(1, start, end) < 0

    def _with_horizon(self, batch: memoryview, header: BatchHeader, offsets: frozenset[int] | None) -> Kept:
        """Sets the delete horizon and keeps the given offsets (None: all).

        The horizon is the base of the timestamps, so all records are encoded again.
        """
        records = [record for record in iter_records(batch) if offsets is None or record.offset in offsets]
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
        """Whether an empty batch must stay: as the last of its producer (sequence), or of all (end offset)."""
        if header.last_offset + 1 == self._end_offset:
            return True
        producer = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return header.last_offset == producer.last_offset
        return header.is_control and header.producer_epoch == producer.epoch
