"""Checks of a leader before it appends a batch, and changes to the batch: recompression, LogAppendTime.

Looks at the header alone where that is enough. Records are parsed for compacted topics, another codec, suspicious
timestamps, old formats, and as `record_validation` says. Never knows offsets of the log, nor producers.

Checks run on the event loop if they take less than about 2 ms, estimated from the sizes of the batch. For larger ones
`check` and `convert` return LONG_CHECK: the caller then runs `check_at_length` in a thread, and stages its result.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.protocol.compression import Codec, compress, compresses_at_once, decompress, decompress_at_once
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import convert_up, converts_at_once
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatch,
    ReadBuffer,
    WriteBuffer,
    pack_batch,
    read_header,
    restamp_log_append_time,
    restamp_max_timestamp,
    validate_batch,
)
from kbroker.protocol.record_walk import IS_COMPILED, MisplacedRecords, RecordsCheck
from kbroker.protocol.records import Pause, check_records, renumber_records

__all__ = ["LONG_CHECK", "AppendRules", "CheckedBatch", "Rejection"]

_CODECS: Final[dict[str, int | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_NOT_FROM_CLIENTS: Final = ATTRIBUTE_CONTROL | ATTRIBUTE_LOG_APPEND_TIME
_RECORDS_AT_ONCE: Final = 50_000 if IS_COMPILED else 500  # about 1 ms
_BYTES_AT_ONCE: Final = 4 << 20  # checksum and copy take about 1 ms

CheckedBatch = tuple[WriteBuffer, BatchHeader]
"""A batch that may be appended, or the new batch in its place, with its header."""


class Rejection(NamedTuple):
    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()


LONG_CHECK: Final = Rejection(ErrorCode.REQUEST_TIMED_OUT, "The batch must be checked in a thread.")
"""Returned, and compared by identity, if a check would keep the event loop too long."""


class AppendRules:
    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_config",
        "_has_bounds",
        "_is_append_time",
        "_is_plain",
        "_is_unconditional",
        "_is_walked",
        "_max_bytes",
        "_partition",
    )

    def __init__(self, config: LogConfig, partition: str) -> None:
        """`partition` is the name for error messages, for example "orders-0"."""
        self._partition = partition
        self._config = config
        self._max_bytes = config.max_message_bytes
        self._codec = _CODECS[config.compression_type]
        self._is_append_time = config.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._has_bounds = min(self._before_max_ms, self._after_max_ms) < UNLIMITED and not self._is_append_time
        self._is_plain = not (self._is_append_time or config.is_compacted or self._codec is not None)
        # Whether every batch that is well-formed may be appended as it is, in the codec of the topic.
        self._is_unconditional = not (self._is_append_time or config.is_compacted or self._has_bounds)
        self._is_walked = config.record_validation == "full"

    def check(self, batch: WriteBuffer, now_ms: int) -> CheckedBatch | Rejection:
        """Checks a client's batch. Returns LONG_CHECK if that takes too long here. Hot path."""
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
            return self._rejected_header(batch, header)
        base_timestamp, max_timestamp = header[7], header[8]
        if (
            self._is_plain
            and max_timestamp >= base_timestamp
            and not (self._has_bounds and self._is_out_of_bounds(base_timestamp, max_timestamp, now_ms))
            and (not self._is_walked or self._has_sound_records(batch, header, now_ms))
        ):
            return batch, header
        return self._check_records(batch, header, now_ms, None)

    def _has_sound_records(self, batch: WriteBuffer, header: BatchHeader, now_ms: int) -> bool:
        """Whether the records are valid and agree with the header. Gives no reason. Hot path."""
        count = header[12]
        codec = header[5] & ATTRIBUTE_CODEC_MASK
        if count > _RECORDS_AT_ONCE or len(batch) > _BYTES_AT_ONCE:
            return False
        data = decompress_at_once(codec, batch[HEADER_SIZE:]) if codec else bytes(batch[HEADER_SIZE:])
        if data is None:
            return False
        check = RecordsCheck(data, count)
        try:
            check.step(count)
        except InvalidBatch:
            return False
        base_timestamp = header[7]
        return (
            check.misplaced < 0
            and base_timestamp + check.largest == header[8]
            and not (self._has_bounds and base_timestamp + check.smallest < now_ms - self._before_max_ms)
        )

    def check_at_length(
        self, records: WriteBuffer, now_ms: int, *, is_message_set: bool, pause: Pause
    ) -> CheckedBatch | Rejection:
        """Converts or checks batches for which `convert` or `check` has returned LONG_CHECK. For threads.

        Uses nothing of the log. May change the records in place: no other thread may use them.
        """
        try:
            batch = self._convert(records, pause) if is_message_set else records
            if len(batch) > self._max_bytes:
                return self._too_large(len(batch))
            if is_message_set and self._is_unconditional:
                return batch, read_header(batch)
            return self._check_records(batch, read_header(batch), now_ms, pause)
        except InvalidBatch as problem:
            return _rejection(problem)

    def check_internal(self, batch: WriteBuffer, now_ms: int) -> tuple[WriteBuffer, BatchHeader] | Rejection:
        """Like `check`, for a batch of the broker: markers, offsets, transaction states. Keeps its codec."""
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
        """Converts messages of magic 0 or 1 to one batch, in the codec of the topic or their own.

        Returns LONG_CHECK if that takes too long here.
        """
        if not converts_at_once(message_set):
            return LONG_CHECK
        try:
            return self._convert(message_set, None)
        except InvalidBatch as problem:
            return _rejection(problem)

    def _convert(self, message_set: ReadBuffer, pause: Pause | None) -> bytearray:
        return convert_up(message_set, codec=self._codec, level=self._config.compression_level, pause=pause)

    def _is_out_of_bounds(self, base_timestamp: int, max_timestamp: int, now_ms: int) -> bool:
        if max_timestamp == NO_TIMESTAMP:
            return False
        return base_timestamp < now_ms - self._before_max_ms or max_timestamp > now_ms + self._after_max_ms

    def _check_records(
        self, batch: WriteBuffer, header: BatchHeader, now_ms: int, pause: Pause | None
    ) -> CheckedBatch | Rejection:
        """Checks every record and changes the batch as the topic demands. `pause` is None on the event loop."""
        config = self._config
        codec = header.codec if self._codec is None else self._codec
        if self._is_append_time and not (config.is_compacted or self._is_walked or codec != header.codec):
            restamp_log_append_time(batch, 0, now_ms)
            return batch, read_header(batch)
        data = self._decompress(batch, header, pause)
        if data is None or (pause is None and codec != header.codec and not compresses_at_once(codec, len(data))):
            return LONG_CHECK
        is_renumbered = False
        try:
            max_timestamp = check_records(
                data,
                header,
                require_keys=config.is_compacted,
                earliest_timestamp=now_ms - self._before_max_ms if self._has_bounds else None,
                latest_timestamp=now_ms + self._after_max_ms if self._has_bounds else None,
                pause=pause,
            ).max_timestamp
        except MisplacedRecords as misplaced:
            # As Kafka: some old clients number the records of compressed batches wrongly.
            if not (header.codec or codec):
                return _rejection(misplaced)
            if pause is None:
                return LONG_CHECK
            is_renumbered, max_timestamp = True, misplaced.max_timestamp
            data = renumber_records(data, header, pause)
        except InvalidBatch as problem:
            return _rejection(problem)
        if is_renumbered or codec != header.codec:
            level = config.compression_level if codec == self._codec else None
            attributes = header.attributes & ~ATTRIBUTE_CODEC_MASK | codec
            new_header = header._replace(attributes=attributes, max_timestamp=max_timestamp)
            batch = pack_batch(new_header, compress(codec, data, level))
            if len(batch) > self._max_bytes:
                return self._too_large(len(batch))
        elif max_timestamp != header.max_timestamp and not self._is_append_time:
            restamp_max_timestamp(batch, 0, max_timestamp)
        if self._is_append_time:
            restamp_log_append_time(batch, 0, now_ms)
        return batch, read_header(batch)

    def _decompress(self, batch: WriteBuffer, header: BatchHeader, pause: Pause | None) -> bytes | None:
        """Returns the records; None if that, or a look at each of them, takes too long on the event loop."""
        payload = memoryview(batch)[HEADER_SIZE:]
        if pause is not None:
            return decompress(header.codec, payload)
        if header.record_count > _RECORDS_AT_ONCE or len(batch) > _BYTES_AT_ONCE:
            return None
        return decompress_at_once(header.codec, payload)

    def _too_large(self, size: int) -> Rejection:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {self._partition} is {size} bytes which exceeds the maximum "
            f"configured value of {self._max_bytes}.",
        )

    def _rejected_header(self, batch: WriteBuffer, header: BatchHeader) -> Rejection:
        if header.size != len(batch):
            message = "Produce requests are only allowed to contain exactly one record batch per partition"
            return Rejection(ErrorCode.INVALID_RECORD, message)
        if header.is_control:
            return Rejection(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records")
        if header.is_log_append_time:
            message = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
            return Rejection(ErrorCode.INVALID_TIMESTAMP, message)
        if header.base_offset:
            message = f"The base offset of the record batch in the append to {self._partition} should be 0, "
            return Rejection(ErrorCode.INVALID_RECORD, f"{message}but it is {header.base_offset}")
        message = f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
        return Rejection(ErrorCode.INVALID_RECORD, message)


def _rejection(problem: InvalidBatch) -> Rejection:
    return Rejection(problem.code, problem.reason, problem.record_errors)
