"""Appending what a leader sent, offsets and epochs as they are. A part of PartitionLog, whose state it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import StorageFailure
from kbroker.log.append_result import AppendResult
from kbroker.log.producer_replay import read_marker
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    iter_headers,
    validate_stored_batch,
)

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

__all__ = ["append_as_follower"]


def append_as_follower(log: PartitionLog, records: ReadBuffer) -> AppendResult:
    view = memoryview(records)
    expected = log._log_end_offset
    batches: list[tuple[memoryview, BatchHeader]] = []
    for position, _header in iter_headers(view):
        header = validate_stored_batch(view, position)
        if header.base_offset < expected:
            raise InvalidBatch(
                ErrorCode.INVALID_RECORD, f"offset {header.base_offset} where at least {expected} is due"
            )
        expected = header.last_offset + 1
        batches.append((view[position : position + header.size], header))
    if not batches:
        return AppendResult(ErrorCode.NONE, log_start_offset=log._log_start_offset)
    try:
        for batch, header in batches:
            _stage(log, batch, header)
    except StorageFailure:
        log._abandon()
        raise
    log.commit()
    first = batches[0][1].base_offset
    return AppendResult(ErrorCode.NONE, first, expected - 1, log_start_offset=log._log_start_offset)


def _stage(log: PartitionLog, batch: memoryview, header: BatchHeader) -> None:
    segment = log._active
    size = len(batch)
    end = segment.size + log._staged_bytes + size
    if end > size and log._is_roll_due(segment, end, header, header.max_timestamp):
        segment = log.roll(header.max_timestamp, base_offset=header.base_offset)
    elif not segment.size and not log._staged and header.last_offset > segment.last_possible_offset:
        log.truncate_fully_and_start_at(header.base_offset)
        segment = log._active
    if header.leader_epoch > log._epochs.latest:
        log._epochs.assign(header.leader_epoch, header.base_offset)
    marker = read_marker(batch) if header.is_control and header.producer_id >= 0 else None
    segment.note(segment.size + log._staged_bytes, size, header.last_offset, header.max_timestamp)
    log._staged.append(batch)
    log._staged_bytes += size
    if header.producer_id >= 0:
        log._note_producer(header, header.base_offset, marker)
