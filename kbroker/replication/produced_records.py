"""Records of a Produce request: the formats that its version may have, and checks of a batch apart from staging it.

v0 to v2 have message sets of magic 0 or 1, later versions one batch of magic 2. zstd is allowed from v7 on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kbroker.log.append_rules import CheckedBatch, Rejection
from kbroker.log.open_log import OpenLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import MAGIC_POSITION

__all__ = [
    "ZSTD_SINCE",
    "LongCheck",
    "is_early_zstd",
    "is_message_set",
    "long_check",
    "no_batch",
    "no_zstd",
    "short_check",
]

ZSTD_SINCE: Final = 7
_BATCHES_SINCE: Final = 3
_ZSTD: Final = 4
_CODEC_POSITION: Final = 22  # the lower byte of a batch's attributes

LongCheck = Callable[..., CheckedBatch | Rejection]
"""Check of a batch that takes a while. Its argument `pause` lets other threads run."""


def long_check(log: OpenLog, records: memoryview, version: int, now_ms: int) -> LongCheck:
    """Returns the check of records for which `Partition.stage` has returned CHECK_IN_THREAD. Any thread may run it."""
    return partial(log.append_rules.check_at_length, records, now_ms, is_message_set=is_message_set(records, version))


def short_check(log: OpenLog, records: memoryview, version: int, now_ms: int) -> CheckedBatch | Rejection:
    """Checks a batch as `Partition.stage` does, and stages nothing. Returns LONG_CHECK if that takes too long."""
    if is_early_zstd(records, version):
        return Rejection(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, no_zstd(version))
    return log.append_rules.check(records, now_ms)


def is_message_set(records: memoryview, version: int) -> bool:
    return version < _BATCHES_SINCE and not _is_batch(records)


def is_early_zstd(records: memoryview, version: int) -> bool:
    """Whether a batch has the codec zstd in a version that does not allow it."""
    return version < ZSTD_SINCE and _is_batch(records) and records[_CODEC_POSITION] & 7 == _ZSTD


def _is_batch(records: memoryview) -> bool:
    return len(records) > _CODEC_POSITION and records[MAGIC_POSITION] == 2


def no_batch(version: int) -> str:
    return f"Produce requests with version {version} must have at least one record batch per partition"


def no_zstd(version: int) -> str:
    return f"Produce requests with version {version} are not allowed to use ZStandard compression"
