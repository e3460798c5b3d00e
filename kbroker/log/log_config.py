"""Topic configs that a log uses, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["UNLIMITED", "LogConfig"]

UNLIMITED: Final = (1 << 63) - 1  # Long.MAX_VALUE, Kafka's "no limit"


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3_600_000  # -1: no limit
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    flush_messages: int = UNLIMITED
    flush_ms: int = UNLIMITED
    max_message_bytes: int = (1 << 20) + 12
    compression_type: str = "producer"  # or uncompressed, gzip, snappy, lz4, zstd
    compression_level: int | None = None  # of compression_type; None: the default of the codec
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 24 * 3_600_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNLIMITED
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = UNLIMITED
    message_timestamp_after_max_ms: int = UNLIMITED
    preallocate: bool = False
    record_validation: Literal["header", "full"] = "header"  # kbroker.record.validation

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Returns the age at which a segment rolls. A compacted log rolls in time for max.compaction.lag.ms."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_deleted(self) -> bool:
        return "delete" in self.cleanup_policy
