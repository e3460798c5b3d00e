"""Checks the batches that a follower fetched from its leader, before any of them is appended."""

from __future__ import annotations

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import (
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    iter_headers,
    validate_stored_batch,
)

__all__ = ["split_fetched"]


def split_fetched(
    records: ReadBuffer, log_end_offset: int, *, is_log_empty: bool
) -> list[tuple[memoryview, BatchHeader]]:
    """Splits records into whole batches; an incomplete batch at the end is left out.

    Raises InvalidBatch if a batch is damaged, or if offsets do not grow from `log_end_offset` on. The first batch of an
    empty log may begin earlier if it holds `log_end_offset`: DeleteRecords can move the leader's start into a batch.
    """
    view = memoryview(records)
    expected = log_end_offset
    batches: list[tuple[memoryview, BatchHeader]] = []
    for position, _header in iter_headers(view):
        header = validate_stored_batch(view, position)
        is_start_inside = is_log_empty and not batches and header.last_offset >= expected
        if header.base_offset < expected and not is_start_inside:
            raise InvalidBatch(
                ErrorCode.INVALID_RECORD,
                f"Base offset {header.base_offset} of a fetched batch is below the log end offset {expected}",
            )
        expected = header.last_offset + 1
        batches.append((view[position : position + header.size], header))
    return batches
