"""Rules for when a log starts its next segment: by size, age, index entries or offset range. Never rolls by itself."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.log.log_config import LogConfig
from kbroker.log.segments.segment import Segment
from kbroker.log.segments.time_index import TIME_ENTRY_SIZE
from kbroker.protocol.record_batch import BatchHeader

__all__ = ["RollRules", "no_jitter"]


def no_jitter(_bound: int) -> int:
    return 0


class RollRules:
    """The rules of one topic config. `random_below(n)` returns a random int from 0 to n - 1."""

    __slots__ = ("_max_entries", "_max_jitter_ms", "_max_segment_ms", "_random_below", "segment_bytes")

    def __init__(self, config: LogConfig, random_below: Callable[[int], int]) -> None:
        self.segment_bytes = config.segment_bytes
        self._max_segment_ms = config.max_segment_ms
        # The time index has the larger entries. One entry stays free for the closing one.
        self._max_entries = max(config.segment_index_bytes // TIME_ENTRY_SIZE - 1, 1)
        self._max_jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._random_below = random_below

    def is_due(self, segment: Segment, end_position: int, header: BatchHeader, now_ms: int) -> bool:
        """Whether to roll before appending a batch that would end at `end_position` of a segment that is not empty."""
        if end_position > self.segment_bytes or segment.entry_count >= self._max_entries:
            return True
        first_timestamp = segment.first_timestamp
        waited_ms = header[8] - first_timestamp if first_timestamp >= 0 else segment.age_ms(now_ms)
        return (
            waited_ms > self._max_segment_ms - segment.roll_jitter_ms
            or segment.next_offset + header[6] > segment.last_possible_offset
        )

    def new_jitter_ms(self) -> int:
        return self._random_below(self._max_jitter_ms) if self._max_jitter_ms > 0 else 0
