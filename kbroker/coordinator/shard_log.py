"""The log of one shard: appends records and replays them at once, and sends responses once they are committed.

Does not know the meaning of records: `replay` belongs to the shard. An append that fails changes nothing in the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from kbroker.clock import Clock
from kbroker.config.topic import TopicConfig
from kbroker.coordinator.pending_response import PendingResponse, deliver
from kbroker.log.append_result import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue, build_keyed_batch

__all__ = ["COMMIT_TIMEOUT_SECONDS", "CoordinatedPartition", "ShardLog", "Timers", "coordinator_error"]

COMMIT_TIMEOUT_SECONDS: Final = 5.0  # offsets.commit.timeout.ms
_RECORD_OVERHEAD: Final = 32
_BATCH_OVERHEAD: Final = 256

_COORDINATOR_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Error of an append -> error in the response: most of them make a client look up its coordinator again."""


def coordinator_error(append_error: int) -> ErrorCode:
    """Returns the error code for the response when an append to the shard's partition failed."""
    return _COORDINATOR_ERRORS.get(ErrorCode(append_error), ErrorCode.UNKNOWN_SERVER_ERROR)


class Timers(Protocol):
    def add(self, seconds: float, callback: Callable[[], None]) -> Any: ...


class CoordinatedPartition(Protocol):
    """The part of a partition that a coordinator uses."""

    @property
    def config(self) -> TopicConfig: ...

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult: ...

    def is_committed(self, last_offset: int) -> bool: ...

    def when_committed(self, last_offset: int, done: Callable[[int], None]) -> None: ...


class ShardLog:
    def __init__(
        self,
        partition: CoordinatedPartition,
        replay: Callable[[list[KeyAndValue]], None],
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._partition = partition
        self._replay = replay
        self._clock = clock
        self._timers = timers
        self._last_offset = -1

    def note_loaded(self, last_offset: int) -> None:
        """Notes that the shard was loaded up to this offset.

        These records need not be committed: the previous leader may have failed before any follower fetched them.
        """
        self._last_offset = last_offset

    def append(self, records: list[KeyAndValue]) -> ErrorCode:
        """Appends and replays records, in as many batches as necessary."""
        now_ms = self._clock.now_ms()
        for chunk in _chunks(records, self._partition.config.max_message_bytes - _BATCH_OVERHEAD):
            result = self.append_batch(build_keyed_batch(chunk, now_ms), now_ms)
            if result.error:
                return coordinator_error(result.error)
            self._replay(chunk)
        return ErrorCode.NONE

    def append_batch(self, batch: bytearray, now_ms: int) -> AppendResult:
        """Appends a batch that the caller replays itself."""
        result = self._partition.append_internal(batch, now_ms)
        if not result.error:
            self._last_offset = result.last_offset
        return result

    def answer(self, pending: PendingResponse, response: Any) -> None:
        """Sends the response once every record in the log is committed: the response may depend on any of them."""
        if self._last_offset < 0 or self._partition.is_committed(self._last_offset):
            deliver(pending, response)
        else:
            DelayedResponse(pending, response, self._partition, self._last_offset, self._timers)

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Calls back once every record in the log is committed; never if this broker stops leading before that."""
        if self._partition.is_committed(self._last_offset):
            callback()
        else:
            self._partition.when_committed(self._last_offset, lambda code: None if code else callback())


class DelayedResponse:
    """A response that waits for the high watermark. After a timeout the client gets COORDINATOR_NOT_AVAILABLE."""

    __slots__ = ("_deadline", "_pending", "_response")

    def __init__(
        self,
        pending: PendingResponse,
        response: Any,
        partition: CoordinatedPartition,
        last_offset: int,
        timers: Timers,
    ) -> None:
        self._pending: PendingResponse | None = pending
        self._response = response
        # Before `when_committed`, which may call `_end` at once: `_end` cancels the deadline.
        self._deadline = timers.add(COMMIT_TIMEOUT_SECONDS, partial(self._end, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        partition.when_committed(last_offset, self._end)

    def _end(self, code: int) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._deadline.cancel()
        if code:
            pending.refuse(_COORDINATOR_ERRORS.get(ErrorCode(code), code))
        else:
            deliver(pending, self._response)


def _chunks(records: list[KeyAndValue], limit: int) -> Iterator[list[KeyAndValue]]:
    """Yields lists of at least one record each. A single record over the limit is left for the log to refuse."""
    start = size = 0
    for index, (key, value) in enumerate(records):
        record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD
        if size and size + record_size > limit:
            yield records[start:index]
            start, size = index, 0
        size += record_size
    if start < len(records):
        yield records[start:]
