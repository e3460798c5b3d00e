"""Topic configs: the table, effective values and validation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kbroker.config.key import (
    DAY_MS,
    MAX_LONG,
    MB,
    ConfigKey,
    ConfigTable,
    Fallback,
    InvalidValue,
    at_least,
    between,
    double,
    flag,
    int32,
    int64,
    keys_of,
    one_of,
    some_of,
    string,
    strings,
)

if TYPE_CHECKING:
    from kbroker.config.broker import BrokerConfig

__all__ = [
    "CODECS",
    "TIMESTAMP_TYPES",
    "TOPIC_CONFIGS",
    "TopicConfig",
    "gzip_level",
    "topic_config",
    "validate_topic_configs",
]


CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


def gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "must be between 1 and 9, or -1"


def _throttled_replicas(value: tuple[str, ...]) -> str | None:
    def is_pair(item: str) -> bool:
        partition, colon, broker = item.partition(":")
        return bool(colon) and partition.strip().isdigit() and broker.strip().isdigit()

    if value == ("*",) or all(is_pair(item) for item in value):
        return None
    return "must be * or a list of PARTITION:BROKER"


class TopicConfig(ConfigTable):
    """Effective configs of a topic: its overrides, else the broker's configs, else the defaults. Never changes."""

    texts: Mapping[str, str]
    """The overrides of the topic, as text."""

    cleanup_policy = strings(
        ("delete",),
        some_of("compact", "delete"),
        "Retention policy for old segments: delete by time and size, compact by key, or both.",
        "log.cleanup.policy",
    )
    compression_gzip_level = int32(
        -1,
        gzip_level,
        "Compression level if compression.type is gzip. If -1, the default of the library is used.",
        "compression.gzip.level",
    )
    compression_lz4_level = int32(
        9, between(1, 17), "Compression level if compression.type is lz4.", "compression.lz4.level"
    )
    compression_type = string(
        "producer",
        one_of(*CODECS),
        "Compression type of stored batches. producer keeps the compression of the producer.",
        "compression.type",
    )
    compression_zstd_level = int32(
        3, between(-131072, 22), "Compression level if compression.type is zstd.", "compression.zstd.level"
    )
    delete_retention_ms = int64(
        DAY_MS,
        at_least(0),
        "Time that tombstones are kept in compacted topics, so that consumers see deletes.",
        "log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = int64(
        60_000,
        at_least(0),
        "Time before the files of a deleted segment are removed from disk.",
        "log.segment.delete.delay.ms",
    )
    flush_messages = int64(
        MAX_LONG,
        at_least(1),
        "Number of records after which the log is flushed to disk. With 1, every record is flushed before it is "
        "acknowledged.",
        "log.flush.interval.messages",
    )
    flush_ms = int64(
        MAX_LONG,
        at_least(0),
        "Time after which the log is flushed to disk.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    follower_replication_throttled_replicas = strings(
        (),
        _throttled_replicas,
        "Replicas whose replication is throttled on the follower side, as PARTITION:BROKER, or * for all.",
    )
    index_interval_bytes = int32(
        4096, at_least(0), "Number of log bytes between two entries of the offset index.", "log.index.interval.bytes"
    )
    leader_replication_throttled_replicas = strings(
        (),
        _throttled_replicas,
        "Replicas whose replication is throttled on the leader side, as PARTITION:BROKER, or * for all.",
    )
    local_retention_bytes = int64(
        -2,
        at_least(-2),
        "Maximum size of the local log with tiered storage. If -2, retention.bytes is used.",
        "log.local.retention.bytes",
        has_effect=False,
    )
    local_retention_ms = int64(
        -2,
        at_least(-2),
        "Time that segments are kept locally with tiered storage. If -2, retention.ms is used.",
        "log.local.retention.ms",
        has_effect=False,
    )
    max_compaction_lag_ms = int64(
        MAX_LONG,
        at_least(1),
        "Maximum time that a record can remain uncompacted.",
        "log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = int32(
        MB + 12,
        at_least(0),
        "Maximum size of a record batch, after compression.",
        "message.max.bytes",
    )
    message_downconversion_enable = flag(
        True,
        "Whether batches are converted for consumers that support only older formats.",
        "log.message.downconversion.enable",
        has_effect=False,
        retired=True,
    )
    message_timestamp_after_max_ms = int64(
        3_600_000,
        at_least(0),
        "Maximum time that a record's timestamp can be ahead of the broker's clock. Ignored with LogAppendTime.",
        "log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms = int64(
        MAX_LONG,
        at_least(0),
        "Maximum time that a record's timestamp can be behind the broker's clock. Ignored with LogAppendTime.",
        "log.message.timestamp.before.max.ms",
    )
    message_timestamp_type = string(
        "CreateTime",
        one_of(*TIMESTAMP_TYPES),
        "Whether records have the timestamp of their creation or of the append to the log.",
        "log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio = double(
        0.5,
        between(0, 1),
        "Minimum ratio of uncompacted log before the log cleaner compacts the log.",
        "log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = int64(
        0,
        at_least(0),
        "Minimum time that a record remains uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas = int32(
        1,
        at_least(1),
        "Minimum number of in-sync replicas required for a produce request with acks=all.",
        "min.insync.replicas",
    )
    preallocate = flag(False, "Whether the file of a new segment is preallocated on disk.", "log.preallocate")
    remote_log_copy_disable = flag(
        False, "Whether tiered storage stops copying the topic's segments.", has_effect=False
    )
    remote_log_delete_on_disable = flag(
        False, "Whether tiered data is deleted when tiered storage is disabled for the topic.", has_effect=False
    )
    remote_storage_enable = flag(
        False, "Whether tiered storage is enabled. kbroker does not support it and rejects true.", has_effect=False
    )
    retention_bytes = int64(
        -1,
        None,
        "Maximum size of a partition before old segments are deleted. If -1, there is no limit.",
        "log.retention.bytes",
    )
    retention_ms = int64(
        7 * DAY_MS,
        at_least(-1),
        "Maximum time that segments are kept before they are deleted. If -1, there is no limit.",
        "log.retention.ms",
        Fallback("log.retention.minutes", 60_000),
        Fallback("log.retention.hours", 3_600_000),
    )
    segment_bytes = int32(
        1024 * MB,
        at_least(14),
        "Maximum size of a segment file. A larger segment is closed and a new one is created.",
        "log.segment.bytes",
    )
    segment_index_bytes = int32(
        10 * MB,
        at_least(4),
        "Maximum size of an index file. A new segment is created when the index is full.",
        "log.index.size.max.bytes",
    )
    segment_jitter_ms = int64(
        0,
        at_least(0),
        "Maximum random jitter subtracted from segment.ms, so that not all segments roll at the same time.",
        "log.roll.jitter.ms",
        Fallback("log.roll.jitter.hours", 3_600_000),
    )
    segment_ms = int64(
        7 * DAY_MS,
        at_least(1),
        "Time after which a segment is closed even if it is not full.",
        "log.roll.ms",
        Fallback("log.roll.hours", 3_600_000),
    )
    unclean_leader_election_enable = flag(
        False,
        "Whether a replica outside the ISR can be elected leader as a last resort, which may lose records.",
        "unclean.leader.election.enable",
    )


TOPIC_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(TopicConfig)}


def topic_config(defaults: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """Returns the effective configs of a topic. All topics without overrides share one object.

    Skips unknown or invalid overrides: a newer release may have stored them.
    """
    if not overrides:
        return defaults.topic_defaults
    values = {name: defaults.topic_defaults.value_of(name) for name in TOPIC_CONFIGS}
    for name, text in overrides.items():
        if name in TOPIC_CONFIGS:
            with suppress(ValueError):
                values[name] = TOPIC_CONFIGS[name].parse(text)
    return TopicConfig(values, overrides)


def validate_topic_configs(overrides: Mapping[str, str | None]) -> str | None:
    """Returns the error message for invalid overrides (INVALID_CONFIG), or None."""
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            return f"Unknown topic config name: {name}"
        if text is None:
            return f"Null value not supported for topic configs: {name}"
        try:
            values[name] = key.parse(text)
        except InvalidValue as problem:
            return problem.for_client()
    if values.get("remote.storage.enable"):
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    least_lag, most_lag = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", MAX_LONG)
    if least_lag > most_lag:
        return f"conflict topic config setting min.compaction.lag.ms ({least_lag}) > max.compaction.lag.ms ({most_lag})"
    return None
