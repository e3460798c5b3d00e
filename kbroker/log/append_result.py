"""What came of an append: offsets, or the code that the client is told. A value, for every partition of a request."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.append_rules import Rejection
from kbroker.log.producer_state import BatchTrace
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["AppendResult", "refused", "refused_or_repeated"]


class AppendResult(NamedTuple):
    error: ErrorCode
    base_offset: int = -1
    last_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    is_duplicate: bool = False
    error_message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


def refused(rejection: Rejection) -> AppendResult:
    return AppendResult(rejection.code, error_message=rejection.message, record_errors=rejection.record_errors)


def refused_or_repeated(verdict: BatchTrace | ErrorCode, log_start_offset: int) -> AppendResult:
    """A retry of a batch that is in the log is answered as then, its timestamp as the append time, as Kafka does."""
    if isinstance(verdict, ErrorCode):
        return AppendResult(verdict)
    base, last, timestamp = verdict.base_offset, verdict.last_offset, verdict.timestamp
    return AppendResult(ErrorCode.NONE, base, last, timestamp, log_start_offset, is_duplicate=True)
