"""The log of one shard: records are appended and replayed at once, answers leave when they are committed.

Knows nothing of what the records mean: `replay` is the shard's. An append that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from kbroker.clock import Clock
from kbroker.config import TopicConfig
from kbroker.coordinator.ticket import Ticket, deliver
from kbroker.log.partition_log import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import build_keyed_batch

__all__ = ["COMMIT_TIMEOUT_SECONDS", "CoordinatedPartition", "KeyAndValue", "ShardLog", "Timers", "answer_to"]

KeyAndValue = tuple[bytes, bytes | None]

COMMIT_TIMEOUT_SECONDS: Final = 5.0  # offsets.commit.timeout.ms
_RECORD_OVERHEAD: Final = 32
_BATCH_OVERHEAD: Final = 256

_ANSWERS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What members are told of an append's error: things that make them look for their coordinator again."""


def answer_to(error: int) -> ErrorCode:
    return _ANSWERS.get(ErrorCode(error), ErrorCode.UNKNOWN_SERVER_ERROR)


class Timers(Protocol):
    def add(self, seconds: float, callback: Callable[[], None]) -> Any: ...


class CoordinatedPartition(Protocol):
    """A partition as a coordinator needs it."""

    @property
    def config(self) -> TopicConfig: ...

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult: ...

    def is_committed(self, last_offset: int) -> bool: ...

    def wait_committed(self, last_offset: int, done: Callable[[int], None]) -> None: ...


class ShardLog:
    def __init__(
        self,
        partition: CoordinatedPartition,
        replay: Callable[[list[KeyAndValue]], None],
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self.partition = partition
        self._replay = replay
        self._clock = clock
        self._timers = timers
        self._last_offset = -1

    def flush(self) -> None:
        """Write what waits to be written with others."""

    def note_loaded(self, last_offset: int) -> None:
        """What was found in the log need not be committed: a leader before may have written it to nobody else."""
        self._last_offset = last_offset

    def append(self, records: list[KeyAndValue]) -> ErrorCode:
        """Written and replayed, in as many batches as it takes."""
        now_ms = self._clock.now_ms()
        for chunk in _chunks(records, self.partition.config.max_message_bytes - _BATCH_OVERHEAD):
            result = self.partition.append_internal(build_keyed_batch(chunk, now_ms), now_ms)
            if result.error:
                return answer_to(result.error)
            self._last_offset = result.last_offset
            self._replay(chunk)
        return ErrorCode.NONE

    def answer(self, ticket: Ticket, response: Any) -> None:
        """As soon as all that it may be based on is committed."""
        if self._last_offset < 0 or self.partition.is_committed(self._last_offset):
            deliver(ticket, response)
        else:
            _Parked(ticket, response, self.partition, self._last_offset, self._timers)


class _Parked:
    """An answer that waits for the high watermark; after a while its client should ask elsewhere."""

    __slots__ = ("_deadline", "_response", "_ticket")

    def __init__(
        self, ticket: Ticket, response: Any, partition: CoordinatedPartition, last_offset: int, timers: Timers
    ) -> None:
        self._ticket: Ticket | None = ticket
        self._response = response
        self._deadline = timers.add(COMMIT_TIMEOUT_SECONDS, partial(self._end, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        partition.wait_committed(last_offset, self._end)

    def _end(self, code: int) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        self._deadline.cancel()
        if code:
            ticket.refuse(_ANSWERS.get(ErrorCode(code), code))
        else:
            deliver(ticket, self._response)


def _chunks(records: list[KeyAndValue], limit: int) -> Iterator[list[KeyAndValue]]:
    """At least one record each: one that is too large alone is for the log to refuse."""
    start = size = 0
    for index, (key, value) in enumerate(records):
        record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD
        if size and size + record_size > limit:
            yield records[start:index]
            start, size = index, 0
        size += record_size
    if start < len(records):
        yield records[start:]
