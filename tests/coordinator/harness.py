"""A partition in memory whose high watermark is moved by hand, timers to run by hand, tickets that remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import TopicConfig, topic_config
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.log.append_result import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import Record, iter_records

NOW_MS = 1_700_000_000_000


class FakePartition:
    def __init__(self, **configs: str) -> None:
        overrides = {name.replace("_", "."): text for name, text in configs.items()}
        self.config: TopicConfig = topic_config(BrokerConfig.from_properties({}), overrides)
        self.batches: list[list[Record]] = []
        self.error = ErrorCode.NONE
        self.is_slow = False
        self._end = 0
        self._committed = 0
        self._parked: list[tuple[int, Callable[[int], None]]] = []

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult:
        if self.error:
            return AppendResult(self.error)
        if len(batch) > self.config.max_message_bytes:
            return AppendResult(ErrorCode.MESSAGE_TOO_LARGE)
        records = list(iter_records(batch))
        self.batches.append(records)
        self._end += len(records)
        if not self.is_slow:
            self._committed = self._end
        return AppendResult(ErrorCode.NONE, self._end - len(records), self._end - 1)

    def is_committed(self, last_offset: int) -> bool:
        return self._committed > last_offset

    def when_committed(self, last_offset: int, done: Callable[[int], None]) -> None:
        self._parked.append((last_offset, done))

    def commit(self, code: int = ErrorCode.NONE) -> None:
        """What was appended is on all replicas, or will never be."""
        self._committed = self._end
        parked, self._parked = self._parked, []
        for _, done in parked:
            done(code)


class FakeDeadline:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeTimers:
    def __init__(self) -> None:
        self.deadlines: list[tuple[float, FakeDeadline]] = []

    def add(self, seconds: float, callback: Callable[[], None]) -> FakeDeadline:
        deadline = FakeDeadline(callback)
        self.deadlines.append((seconds, deadline))
        return deadline

    def run_all(self) -> None:
        deadlines, self.deadlines = self.deadlines, []
        for _, deadline in sorted(deadlines, key=lambda entry: entry[0]):
            if deadline.callback is not None:
                deadline.callback()


class StillClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class Waiting:
    """Records the response, or the error code, that a PendingResponse gets."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.pending = PendingResponse(self.received.append, lambda code: self.received.append(ErrorCode(code)))

    @property
    def answer(self) -> Any:
        assert len(self.received) == 1, f"answered {len(self.received)} times"
        return self.received[0]
