"""Builds logs to compact, compacts them without a thread, and reads the result."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.cleaning.compaction import Compaction, Limits, SourceSegment
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.log_compaction import cleanable_of, plan_compaction, replace_segments
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.segments.segment import Segment
from kbroker.protocol.compression import Codec
from kbroker.protocol.record_batch import iter_headers
from kbroker.protocol.records import Record, build_batch, iter_records
from tests.log.batches import NOW

AMPLE = Limits()
SMALL = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)


class NoPace:
    def tick(self) -> None:
        pass

    def took(self, size: int) -> None:
        pass


def keyed_batch(
    *pairs: tuple[str, str | None],
    timestamp: int = NOW,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
) -> bytearray:
    records = [
        Record(number, timestamp + number, key.encode(), None if value is None else value.encode())
        for number, (key, value) in enumerate(pairs)
    ]
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        is_transactional=transactional,
    )


def compact(log: OpenLog, now_ms: int = NOW, *, limits: Limits = AMPLE) -> None:
    """Compacts a log as the cleaner does, without its thread."""
    found = cleanable_of(log, now_ms)
    if found.is_checkpoint_wrong:
        log.cleaner_offset = found.first_dirty_offset
    if not found.cleanable_bytes:
        return
    compaction = Compaction(plan_compaction(log, found, now_ms, limits), NoPace())
    end_offset = compaction.build_map()
    for group in compaction.groups():
        cleaned = compaction.write_cleaned(group)
        assert replace_segments(log, segments_of(log, group), cleaned, now_ms)
    log.cleaner_offset = end_offset


def segments_of(log: OpenLog, group: Sequence[SourceSegment]) -> list[Segment]:
    """Returns the segments of the log that a group names."""
    bases = {source.base_offset for source in group}
    return [segment for segment in log.segments if segment.base_offset in bases]


def seal(log: OpenLog, now_ms: int = NOW) -> None:
    """Rolls and flushes the log, so that everything in it may be compacted."""
    log.roll(now_ms)
    log.flush(now_ms)


def records_of(log: OpenLog, offset: int | None = None) -> list[Record]:
    at = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while True:
        piece = log.read(at, 1 << 30)
        if not isinstance(piece, FileSlice):
            assert piece is None
            return found
        content = piece.read()
        piece.release()
        for position, header in iter_headers(content):
            found += (
                [record for record in iter_records(content, position) if record.offset >= at]
                if not header.is_control
                else []
            )
            at = header.last_offset + 1


def pairs_of(log: OpenLog, offset: int | None = None) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in records_of(log, offset)
    ]
