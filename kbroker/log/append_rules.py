"""What a leader demands of a batch before it takes it, and what it makes of it.

From the header alone where that is enough; the records are parsed for compacted topics, a forced codec, timestamps that
look wrong, old formats, and where `record_validation` is "full". Never knows offsets or producers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import convert_up
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    WriteBuffer,
    read_header,
    restamp_log_append_time,
    restamp_max_timestamp,
    validate_batch,
)
from kbroker.protocol.records import build_batch, iter_records, validate_records

__all__ = ["AppendRules", "Rejection"]

_CODECS: Final[dict[str, int | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_NOT_FROM_CLIENTS: Final = ATTRIBUTE_CONTROL | ATTRIBUTE_LOG_APPEND_TIME


class Rejection(NamedTuple):
    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()


class AppendRules:
    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_config",
        "_has_bounds",
        "_is_append_time",
        "_is_plain",
        "_max_bytes",
    )

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._max_bytes = config.max_message_bytes
        self._codec = _CODECS[config.compression_type]
        self._is_append_time = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._has_bounds = min(self._before_max_ms, self._after_max_ms) < UNLIMITED and not self._is_append_time
        self._is_plain = not (
            self._is_append_time or config.is_compacted or self._codec is not None or config.record_validation == "full"
        )

    def check(self, batch: WriteBuffer, now_ms: int) -> tuple[WriteBuffer, BatchHeader] | Rejection:
        """A client's batch, ready to be stamped: the one given, or another one in its place. Hot path."""
        try:
            header = validate_batch(batch)
        except InvalidBatch as problem:
            return _rejection(problem)
        size = header[1] + LOG_OVERHEAD
        if size > self._max_bytes:
            return self._too_large(size)
        if (
            size != len(batch)
            or header[5] & _NOT_FROM_CLIENTS
            or header[0]  # base offset
            or (header[9] >= 0 and header[11] < 0)  # a producer id without a sequence
        ):
            return _refuse_claims(batch, header)
        base_timestamp, max_timestamp = header[7], header[8]
        if (
            self._is_plain
            and max_timestamp >= base_timestamp
            and not (self._has_bounds and self._is_out_of_bounds(base_timestamp, max_timestamp, now_ms))
        ):
            return batch, header
        try:
            return self._check_records(batch, header, now_ms)
        except InvalidBatch as problem:
            return _rejection(problem)

    def check_internal(self, batch: WriteBuffer, now_ms: int) -> tuple[WriteBuffer, BatchHeader] | Rejection:
        """The broker's own batch: markers, offsets, transaction states. Its codec is left alone."""
        try:
            header = validate_batch(batch)
        except InvalidBatch as problem:
            return _rejection(problem)
        if header.size > self._max_bytes:
            return self._too_large(header.size)
        if self._is_append_time:
            restamp_log_append_time(batch, 0, now_ms)
            header = read_header(batch)
        return batch, header

    def convert(self, message_set: ReadBuffer) -> bytearray | Rejection:
        """Messages of magic 0 or 1 as one batch, in the codec that the topic forces or their own."""
        try:
            return convert_up(message_set, codec=self._codec, level=self._config.compression_level)
        except InvalidBatch as problem:
            return _rejection(problem)

    def _is_out_of_bounds(self, base_timestamp: int, max_timestamp: int, now_ms: int) -> bool:
        if max_timestamp == NO_TIMESTAMP:
            return False
        return base_timestamp < now_ms - self._before_max_ms or max_timestamp > now_ms + self._after_max_ms

    def _check_records(
        self, batch: WriteBuffer, header: BatchHeader, now_ms: int
    ) -> tuple[WriteBuffer, BatchHeader] | Rejection:
        config = self._config
        is_recoded = self._codec is not None and self._codec != header.codec
        if not self._is_append_time or config.is_compacted or config.record_validation == "full":
            summary = validate_records(
                batch,
                require_keys=config.is_compacted,
                earliest_timestamp=now_ms - self._before_max_ms if self._has_bounds else None,
                latest_timestamp=now_ms + self._after_max_ms if self._has_bounds else None,
            )
            if summary.max_timestamp != header.max_timestamp and not self._is_append_time:
                restamp_max_timestamp(batch, 0, summary.max_timestamp)
        if is_recoded:
            batch = self._recode(batch, header)
            if len(batch) > self._max_bytes:
                return self._too_large(len(batch))
        if self._is_append_time:
            restamp_log_append_time(batch, 0, now_ms)
        return batch, read_header(batch)

    def _recode(self, batch: WriteBuffer, header: BatchHeader) -> bytearray:
        assert self._codec is not None
        return build_batch(
            iter_records(batch),
            codec=self._codec,
            level=self._config.compression_level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )

    def _too_large(self, size: int) -> Rejection:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; max.message.bytes is {self._max_bytes}"
        )


def _rejection(problem: InvalidBatch) -> Rejection:
    return Rejection(problem.code, problem.reason, problem.record_errors)


def _refuse_claims(batch: WriteBuffer, header: BatchHeader) -> Rejection:
    if header.size != len(batch):
        return Rejection(ErrorCode.INVALID_RECORD, "more than one batch for a partition")
    if header.is_control:
        return Rejection(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.is_log_append_time:
        return Rejection(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the broker's timestamp type")
    if header.base_offset:
        return Rejection(ErrorCode.INVALID_RECORD, f"a base offset of {header.base_offset} where 0 is required")
    return Rejection(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id} without a sequence number")
