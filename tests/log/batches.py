"""Builds batches as clients send them, and a log to append them to."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.append_result import AppendResult
from kbroker.log.files.checkpoint import NO_OFFSETS, CheckpointedOffsets
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.compression import Codec
from kbroker.protocol.record_batch import BatchHeader, iter_headers
from kbroker.protocol.records import (
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_batch,
    iter_records,
)

NOW = 1_700_000_000_000


def make_batch(
    *values: bytes,
    key: bytes | None = b"k",
    timestamp: int = NOW,
    timestamps: Sequence[int] | None = None,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
) -> bytearray:
    values = values or (b"v",)
    times = timestamps or [timestamp] * len(values)
    return build_batch(
        [Record(number, times[number], key, value) for number, value in enumerate(values)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        is_transactional=transactional,
    )


def make_marker(
    producer_id: int, *, epoch: int = 0, commit: bool, coordinator_epoch: int = 0, timestamp: int = NOW
) -> bytearray:
    marker = EndTransactionMarker(is_commit=commit, coordinator_epoch=coordinator_epoch)
    return build_end_transaction_batch(marker, producer_id=producer_id, producer_epoch=epoch, timestamp=timestamp)


def append_as_leader(
    log: OpenLog, batch: bytearray, leader_epoch: int, now_ms: int, *, is_internal: bool = False
) -> AppendResult:
    result = log.stage(batch, leader_epoch, now_ms, is_internal=is_internal)
    log.commit()
    return result


def append(log: OpenLog, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW, internal: bool = False) -> int:
    """Appends a batch that must be accepted, commits it, and returns its offset."""
    result = append_as_leader(log, batch, epoch, now_ms, is_internal=internal)
    assert result.error == 0, result
    log.advance_high_watermark(log.log_end_offset)
    return result.base_offset


def read_bytes(log: OpenLog, offset: int, max_bytes: int = 1 << 30, *, up_to: int | None = None) -> bytes:
    found = log.read(offset, max_bytes, up_to=up_to)
    assert found is None or isinstance(found, FileSlice), found
    if found is None:
        return b""
    assert found.is_valid()
    content = found.read()
    assert len(content) == found.size
    found.release()
    return content


def read_headers(log: OpenLog, offset: int = 0, *, up_to: int | None = None) -> list[BatchHeader]:
    """Returns every batch from the one that holds `offset` on, over all segments."""
    headers: list[BatchHeader] = []
    while content := read_bytes(log, offset, up_to=up_to):
        found = [header for _position, header in iter_headers(content)]
        assert found, "a read that holds no whole batch"
        headers += found
        offset = found[-1].last_offset + 1
    return headers


def read_values(log: OpenLog, offset: int | None = None, *, up_to: int | None = None) -> list[tuple[int, bytes]]:
    """Returns (offset, value) of every record from `offset` on, as a consumer would see them."""
    at = log.log_start_offset if offset is None else offset
    values: list[tuple[int, bytes]] = []
    while content := read_bytes(log, at, up_to=up_to):
        for position, header in iter_headers(content):
            values += [
                (record.offset, record.value or b"")
                for record in iter_records(content, position)
                if record.offset >= at
            ]
            at = header.last_offset + 1
    return values


def append_run(log: OpenLog, batches: Sequence[bytearray], epoch: int, now_ms: int) -> list[AppendResult]:
    """Appends batches in one write. Each one is accepted or rejected by itself."""
    results = [log.stage(batch, epoch, now_ms) for batch in batches]
    log.commit()
    return results


def remove_deleted(log: OpenLog, filesystem: FileSystem, now_ms: int) -> list[str]:
    """Deletes files as a thread of the broker does. Returns their paths."""
    paths = log.pending_deletes.pop_due(now_ms)
    for path in paths:
        filesystem.remove(path)
    return paths


def open_log(
    filesystem: FileSystem,
    path: str,
    config: LogConfig | None = None,
    *,
    is_clean: bool = True,
    recovery_point: int = 0,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    cleaner_offset: int | None = None,
) -> OpenLog:
    offsets = CheckpointedOffsets(log_start_offset, recovery_point, high_watermark, cleaner_offset)
    return closed_log(filesystem, path, config, offsets, is_clean=is_clean).open()


def closed_log(
    filesystem: FileSystem,
    path: str,
    config: LogConfig | None = None,
    offsets: CheckpointedOffsets = NO_OFFSETS,
    *,
    is_clean: bool = True,
) -> PartitionLog:
    """Returns a log that is not open; opening recovers it if necessary."""
    filesystem.make_directory(path)
    return PartitionLog(FileCache(filesystem), path, config or LogConfig(), offsets, is_clean=is_clean)
