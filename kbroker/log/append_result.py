"""Result of an append to one partition: offsets, or an error code for the client."""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.append_rules import LONG_CHECK, Rejection
from kbroker.log.producers.producer_state import BatchTrace
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "CHECK_IN_THREAD",
    "AppendResult",
    "larger_than_segment",
    "partition_name",
    "refused",
    "refused_or_repeated",
]


class AppendResult(NamedTuple):
    error: ErrorCode
    base_offset: int = -1
    last_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    is_duplicate: bool = False
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


CHECK_IN_THREAD: Final = AppendResult(LONG_CHECK.code, error_message=LONG_CHECK.message)
"""Nothing was staged: the check takes too long on the event loop. Compared by identity."""


def refused(rejection: Rejection) -> AppendResult:
    if rejection is LONG_CHECK:
        return CHECK_IN_THREAD
    return AppendResult(rejection.code, error_message=rejection.message, record_errors=rejection.record_errors)


def refused_or_repeated(verdict: BatchTrace | ErrorCode, log_start_offset: int) -> AppendResult:
    """Returns an error, or for a retried batch the offsets it has in the log, with its timestamp as append time."""
    if isinstance(verdict, ErrorCode):
        return AppendResult(verdict)
    base, last, timestamp = verdict.base_offset, verdict.last_offset, verdict.timestamp
    return AppendResult(ErrorCode.NONE, base, last, timestamp, log_start_offset, is_duplicate=True)


def larger_than_segment(path: str, *, size: int, segment_bytes: int) -> AppendResult:
    message = f"Message batch size is {size} bytes in append to partition {partition_name(path)}, which exceeds the "
    message += f"maximum configured segment size of {segment_bytes}."
    return AppendResult(ErrorCode.RECORD_LIST_TOO_LARGE, error_message=message)


def partition_name(path: str) -> str:
    """Returns the name of a partition, as errors have it, from the path of its log."""
    return path.rpartition("/")[2]
