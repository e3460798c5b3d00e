"""Converts the configs of a topic to the config of its logs."""

from __future__ import annotations

from typing import Literal

from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import TopicConfig
from kbroker.log.log_config import LogConfig
from kbroker.protocol.record_walk import IS_COMPILED

__all__ = ["log_config"]


def log_config(config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    level = levels.get(config.compression_type)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
        max_message_bytes=config.max_message_bytes,
        compression_type=config.compression_type,
        compression_level=None if level == -1 else level,
        cleanup_policy=frozenset(config.cleanup_policy),
        message_timestamp_type="LogAppendTime" if config.message_timestamp_type == "LogAppendTime" else "CreateTime",
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        delete_retention_ms=config.delete_retention_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        preallocate=config.preallocate,
        record_validation=_record_validation(broker.kbroker_record_validation),
    )


def _record_validation(text: str) -> Literal["header", "full"]:
    # Interpreted, a walk over the records costs more than the rest of the request.
    return "full" if text == "full" or (text == "auto" and IS_COMPILED) else "header"
