"""Kafka's configs under Kafka's names: the tables of broker and topic configs, and how texts become typed values.

A config is declared once, as a line in a table below; type, default, check, synonyms and documentation follow from it.
Knows nothing of where a text came from (file, command line, request) and never reads a file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kbroker.config_key import (
    DAY_MS,
    MAX_DOUBLE,
    MAX_INT,
    MAX_LONG,
    MB,
    ConfigEntry,
    ConfigKey,
    ConfigSource,
    ConfigSynonym,
    ConfigTable,
    ConfigType,
    Fallback,
    UpdateMode,
    at_least,
    between,
    double,
    flag,
    format_value,
    int16,
    int32,
    int64,
    joined_strings,
    keys_of,
    one_of,
    optional_int32,
    optional_int64,
    optional_string,
    some_of,
    string,
    strings,
)
from kbroker.errors import UserError
from kbroker.inactive_configs import CLUSTER_WIDE, PER_BROKER, InactiveBrokerConfig

__all__ = [
    "BROKER_CONFIGS",
    "TOPIC_CONFIGS",
    "BrokerConfig",
    "ConfigEntry",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Endpoint",
    "TopicConfig",
    "describe_broker_configs",
    "describe_default_broker_configs",
    "describe_topic_configs",
    "format_value",
    "parse_host_counts",
    "parse_properties",
    "topic_config",
    "validate_dynamic_configs",
    "validate_topic_configs",
]


class Endpoint(NamedTuple):
    """A named listener; port 0 stands for whatever port the system gives, an empty host for every interface."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "must be between 1 and 9, or -1"


def _host_counts(value: str) -> str | None:
    problem = parse_host_counts(value)
    return problem if isinstance(problem, str) else None


def parse_host_counts(text: str) -> dict[str, int] | str:
    """From ADDRESS:COUNT,ADDRESS:COUNT; or what is wrong with it."""
    counts = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, count = pair.rpartition(":")
        if not host or not count.isdigit():
            return f"must be a list of ADDRESS:COUNT, and {pair} is not"
        counts[host.strip("[]")] = int(count)
    return counts


def _migration_policy(value: str) -> str | None:
    choices = ("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL")
    return None if value.upper() in choices else f"must be one of {', '.join(choices)}"


def _throttled_replicas(value: tuple[str, ...]) -> str | None:
    def is_pair(item: str) -> bool:
        partition, colon, broker = item.partition(":")
        return bool(colon) and partition.strip().isdigit() and broker.strip().isdigit()

    if value == ("*",) or all(is_pair(item) for item in value):
        return None
    return "must be * or a list of partition:broker"


_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


class TopicConfig(ConfigTable):
    """The effective configs of a topic: its own, else the broker's, else the default."""

    texts: Mapping[str, str]
    """The topic's own overrides, as they were given."""

    cleanup_policy = strings(
        ("delete",),
        some_of("compact", "delete"),
        "What happens to old segments: they are deleted by time and size, compacted by key, or both.",
        "log.cleanup.policy",
    )
    compression_gzip_level = int32(
        -1,
        _gzip_level,
        "Level used when compression.type is gzip; -1 is the library's own choice.",
        "compression.gzip.level",
    )
    compression_lz4_level = int32(
        9, between(1, 17), "Level used when compression.type is lz4.", "compression.lz4.level"
    )
    compression_type = string(
        "producer",
        one_of(*_CODECS),
        "Codec of the stored batches; producer keeps each batch as it was sent.",
        "compression.type",
    )
    compression_zstd_level = int32(
        3, between(-131072, 22), "Level used when compression.type is zstd.", "compression.zstd.level"
    )
    delete_retention_ms = int64(
        DAY_MS,
        at_least(0),
        "How long a tombstone survives compaction, so that slow readers still see the delete.",
        "log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = int64(
        60_000,
        at_least(0),
        "How long a deleted segment's file stays before it leaves the disk.",
        "log.segment.delete.delay.ms",
    )
    flush_messages = int64(
        MAX_LONG,
        at_least(1),
        "Records that may be in the page cache alone before an fsync is forced; 1 syncs before each acknowledgement.",
        "log.flush.interval.messages",
    )
    flush_ms = int64(
        MAX_LONG,
        at_least(0),
        "Time that records may be in the page cache alone before an fsync is forced.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    follower_replication_throttled_replicas = strings(
        (),
        _throttled_replicas,
        "Replicas whose replication is slowed on the follower's side: partition:broker, or * for all.",
        acts=False,
    )
    index_interval_bytes = int32(
        4096, at_least(0), "Bytes of log between two entries of the offset index.", "log.index.interval.bytes"
    )
    leader_replication_throttled_replicas = strings(
        (),
        _throttled_replicas,
        "Replicas whose replication is slowed on the leader's side: partition:broker, or * for all.",
        acts=False,
    )
    local_retention_bytes = int64(
        -2,
        at_least(-2),
        "Bytes kept on local disk with tiered storage; -2 follows retention.bytes.",
        "log.local.retention.bytes",
        acts=False,
    )
    local_retention_ms = int64(
        -2,
        at_least(-2),
        "Time kept on local disk with tiered storage; -2 follows retention.ms.",
        "log.local.retention.ms",
        acts=False,
    )
    max_compaction_lag_ms = int64(
        MAX_LONG,
        at_least(1),
        "Longest time that a record stays out of compaction's reach.",
        "log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = int32(
        MB + 12,
        at_least(0),
        "Largest batch that a producer may send, as it arrives (after compression).",
        "message.max.bytes",
    )
    message_downconversion_enable = flag(
        True,
        "Whether batches are converted for consumers that know only older formats.",
        "log.message.downconversion.enable",
        acts=False,
        retired=True,
    )
    message_timestamp_after_max_ms = int64(
        3_600_000,
        at_least(0),
        "How far a record's timestamp may lie ahead of the broker's clock; unused with LogAppendTime.",
        "log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms = int64(
        MAX_LONG,
        at_least(0),
        "How far a record's timestamp may lie behind the broker's clock; unused with LogAppendTime.",
        "log.message.timestamp.before.max.ms",
    )
    message_timestamp_type = string(
        "CreateTime",
        one_of(*_TIMESTAMP_TYPES),
        "Whether a record carries its producer's time or the time of the append.",
        "log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio = double(
        0.5,
        between(0, 1),
        "Share of the log that must be uncompacted before compaction begins.",
        "log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = int64(
        0,
        at_least(0),
        "Time for which a record is safe from compaction.",
        "log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas = int32(
        1, at_least(1), "Replicas that must be in sync before acks=all is accepted.", "min.insync.replicas"
    )
    preallocate = flag(False, "Whether a new segment's file gets its full size at once.", "log.preallocate")
    remote_log_copy_disable = flag(False, "Whether tiered storage stops copying this topic's segments.", acts=False)
    remote_log_delete_on_disable = flag(
        False, "Whether tiered data is deleted when tiered storage is turned off for the topic.", acts=False
    )
    remote_storage_enable = flag(False, "Tiered storage; not offered here, so true is refused.", acts=False)
    retention_bytes = int64(
        -1, None, "Size of a partition above which its oldest segments go; -1 is without limit.", "log.retention.bytes"
    )
    retention_ms = int64(
        7 * DAY_MS,
        at_least(-1),
        "Age above which a segment goes; -1 is without limit.",
        "log.retention.ms",
        Fallback("log.retention.minutes", 60_000),
        Fallback("log.retention.hours", 3_600_000),
    )
    segment_bytes = int32(
        1024 * MB, at_least(14), "Size at which a segment's file is closed and a new one begun.", "log.segment.bytes"
    )
    segment_index_bytes = int32(
        10 * MB,
        at_least(4),
        "Largest size of an index file; a full index begins a new segment.",
        "log.index.size.max.bytes",
    )
    segment_jitter_ms = int64(
        0,
        at_least(0),
        "Random share taken off segment.ms, so that segments do not all roll at once.",
        "log.roll.jitter.ms",
        Fallback("log.roll.jitter.hours", 3_600_000),
    )
    segment_ms = int64(
        7 * DAY_MS,
        at_least(1),
        "Age at which a segment is closed even if it is not full.",
        "log.roll.ms",
        Fallback("log.roll.hours", 3_600_000),
    )
    unclean_leader_election_enable = flag(
        False,
        "Whether a replica out of sync may lead when no other is left, at the price of lost records.",
        "unclean.leader.election.enable",
    )


class BrokerConfig(InactiveBrokerConfig):
    """The configs of a broker: as its properties give them, and as they were changed while it ran."""

    texts: Mapping[str, str]
    """The properties that were given, as they were given, those that are not known here included."""
    warnings: tuple[str, ...]
    """A line for each property that has no meaning here."""

    advertised_listeners = joined_strings(
        (), "Addresses told to clients, one for each named listener; empty: those of listeners."
    )
    auto_create_topics_enable = flag(True, "Whether asking for the metadata of a topic that is not there creates it.")
    auto_leader_rebalance_enable = flag(True, "Whether leadership goes back to preferred replicas by itself.")
    broker_id = int32(-1, at_least(-1), "This broker's number in the cluster; -1 has one generated and kept.")
    broker_rack = optional_string("Where this broker stands, for spreading replicas and for reading nearby.")
    compression_gzip_level = int32(
        -1, _gzip_level, "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_lz4_level = int32(
        9, between(1, 17), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_type = string(
        "producer", one_of(*_CODECS), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_zstd_level = int32(
        3, between(-131072, 22), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    connections_max_idle_ms = int64(
        600_000, None, "A connection on which nothing completes for so long is closed; negative: never."
    )
    controller_listener_names = joined_strings(
        (), "Listeners that belong to a KRaft controller; they are left out here."
    )
    controller_quota_window_num = int32(11, at_least(1), "Samples kept for the quota of topic changes.")
    controller_quota_window_size_seconds = int32(1, at_least(1), "Length of a sample for the quota of topic changes.")
    controlled_shutdown_enable = flag(True, "Whether a broker hands its leaderships over before it stops.")
    default_replication_factor = int32(1, at_least(1), "Replicas of a topic created without a count.")
    delete_topic_enable = flag(True, "Whether topics may be deleted.")
    fetch_max_bytes = int32(55 * MB, at_least(1024), "Most bytes in one fetch response, whatever the client asks for.")
    group_consumer_assignors = strings(
        ("uniform", "range"), None, "Assignors on the server's side for consumer groups; the first is the default."
    )
    group_consumer_heartbeat_interval_ms = int32(
        5000, at_least(1), "How often members of a consumer group are told to send a heartbeat."
    )
    group_consumer_max_size = int32(MAX_INT, at_least(1), "Most members of a consumer group.")
    group_consumer_migration_policy = string(
        "bidirectional",
        _migration_policy,
        "Between which protocols a group may change while it has members.",
    )
    group_consumer_session_timeout_ms = int32(
        45_000, at_least(1), "Silence after which a member of a consumer group is taken for dead."
    )
    group_coordinator_rebalance_protocols = strings(
        ("classic", "consumer", "streams"),
        some_of("consumer", "classic", "share", "streams"),
        "The group protocols that are offered; only consumer can be left out.",
    )
    group_initial_rebalance_delay_ms = int32(
        3_000, at_least(0), "How long a new group waits for more members before its first rebalance."
    )
    group_max_session_timeout_ms = int32(1_800_000, None, "Longest session timeout that a member may ask for.")
    group_max_size = int32(MAX_INT, at_least(1), "Most members of a group.")
    group_min_session_timeout_ms = int32(6_000, None, "Shortest session timeout that a member may ask for.")
    inter_broker_listener_name = optional_string("The named listener that brokers use among themselves.")
    leader_imbalance_check_interval_seconds = int64(
        300, at_least(1), "How often the controller looks for leaderships to give back."
    )
    leader_imbalance_per_broker_percentage = int32(
        10,
        at_least(0),
        "Share of a broker's preferred leaderships that others may have before it gets them back.",
        retired=True,
    )
    listener_security_protocol_map = joined_strings(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "What each named listener speaks, as NAME:PROTOCOL.",
        update=PER_BROKER,
    )
    listeners = joined_strings(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://HOST:PORT. By default this machine only, as nobody is authenticated.",
        update=PER_BROKER,
    )
    log_cleaner_backoff_ms = int64(
        15_000, at_least(0), "How long compaction rests when nothing is to be done.", update=CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size = int64(
        128 * MB, None, "Memory in which compaction notes keys, 24 bytes for each.", update=CLUSTER_WIDE
    )
    log_cleaner_delete_retention_ms = int64(
        DAY_MS, at_least(0), "Broker's default for delete.retention.ms.", update=CLUSTER_WIDE
    )
    log_cleaner_enable = flag(True, "Whether compaction runs at all.")
    log_cleaner_io_buffer_load_factor = double(
        0.9, None, "How full the table of keys may get before compaction begins anew.", update=CLUSTER_WIDE
    )
    log_cleaner_io_buffer_size = int32(
        512 * 1024, at_least(0), "Memory in which compaction reads and writes, half of it each.", update=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second = double(
        MAX_DOUBLE, None, "Most bytes that compaction reads and writes in a second.", update=CLUSTER_WIDE
    )
    log_cleaner_max_compaction_lag_ms = int64(
        MAX_LONG, at_least(1), "Broker's default for max.compaction.lag.ms.", update=CLUSTER_WIDE
    )
    log_cleaner_min_cleanable_ratio = double(
        0.5, between(0, 1), "Broker's default for min.cleanable.dirty.ratio.", update=CLUSTER_WIDE
    )
    log_cleaner_min_compaction_lag_ms = int64(
        0, at_least(0), "Broker's default for min.compaction.lag.ms.", update=CLUSTER_WIDE
    )
    log_cleanup_policy = strings(
        ("delete",), some_of("compact", "delete"), "Broker's default for cleanup.policy.", update=CLUSTER_WIDE
    )
    log_dir = string("kbroker-data", None, "Directory of the data, if log.dirs does not name any.")
    log_dirs = joined_strings((), "Directories of the data; empty: log.dir.")
    log_flush_interval_messages = int64(
        MAX_LONG, at_least(1), "Broker's default for flush.messages.", update=CLUSTER_WIDE
    )
    log_flush_interval_ms = optional_int64(
        None, "Broker's default for flush.ms; unset: log.flush.scheduler.interval.ms.", update=CLUSTER_WIDE
    )
    log_flush_offset_checkpoint_interval_ms = int32(
        60_000, at_least(0), "How often the recovery points are written down."
    )
    log_flush_scheduler_interval_ms = int64(
        MAX_LONG, None, "How often the logs are looked over for one that is due for an fsync."
    )
    log_flush_start_offset_checkpoint_interval_ms = int32(
        60_000, at_least(0), "How often the log start offsets are written down.", acts=False
    )
    log_index_interval_bytes = int32(
        4096, at_least(0), "Broker's default for index.interval.bytes.", update=CLUSTER_WIDE
    )
    log_index_size_max_bytes = int32(
        10 * MB, at_least(4), "Broker's default for segment.index.bytes.", update=CLUSTER_WIDE
    )
    log_initial_task_delay_ms = int64(
        30_000,
        at_least(0),
        "How long after start the first look at retention, flushing and checkpoints happens.",
        acts=False,
    )
    log_local_retention_bytes = int64(
        -2, at_least(-2), "Broker's default for local.retention.bytes.", acts=False, update=CLUSTER_WIDE
    )
    log_local_retention_ms = int64(
        -2, at_least(-2), "Broker's default for local.retention.ms.", acts=False, update=CLUSTER_WIDE
    )
    log_message_downconversion_enable = flag(
        True, "Broker's default for message.downconversion.enable.", acts=False, retired=True
    )
    log_message_timestamp_after_max_ms = int64(
        3_600_000, at_least(0), "Broker's default for message.timestamp.after.max.ms.", update=CLUSTER_WIDE
    )
    log_message_timestamp_before_max_ms = int64(
        MAX_LONG, at_least(0), "Broker's default for message.timestamp.before.max.ms.", update=CLUSTER_WIDE
    )
    log_message_timestamp_type = string(
        "CreateTime", one_of(*_TIMESTAMP_TYPES), "Broker's default for message.timestamp.type.", update=CLUSTER_WIDE
    )
    log_preallocate = flag(False, "Broker's default for preallocate.", update=CLUSTER_WIDE)
    log_retention_bytes = int64(-1, None, "Broker's default for retention.bytes.", update=CLUSTER_WIDE)
    log_retention_check_interval_ms = int64(300_000, at_least(1), "How often retention looks for segments to delete.")
    log_retention_hours = int32(
        168, None, "Broker's default for retention.ms, in hours; minutes and milliseconds win over it."
    )
    log_retention_minutes = optional_int32(
        None, "Broker's default for retention.ms, in minutes; milliseconds win over it."
    )
    log_retention_ms = optional_int64(None, "Broker's default for retention.ms.", update=CLUSTER_WIDE)
    log_roll_hours = int32(168, at_least(1), "Broker's default for segment.ms, in hours; milliseconds win over it.")
    log_roll_jitter_hours = int32(
        0, at_least(0), "Broker's default for segment.jitter.ms, in hours; milliseconds win over it."
    )
    log_roll_jitter_ms = optional_int64(at_least(0), "Broker's default for segment.jitter.ms.", update=CLUSTER_WIDE)
    log_roll_ms = optional_int64(at_least(1), "Broker's default for segment.ms.", update=CLUSTER_WIDE)
    log_segment_bytes = int32(1024 * MB, at_least(14), "Broker's default for segment.bytes.", update=CLUSTER_WIDE)
    log_segment_delete_delay_ms = int64(
        60_000, at_least(0), "Broker's default for file.delete.delay.ms.", update=CLUSTER_WIDE
    )
    max_connection_creation_rate = int32(
        MAX_INT, at_least(0), "Most new connections in a second; more have to wait.", update=CLUSTER_WIDE
    )
    max_connections = int32(
        MAX_INT, at_least(0), "Most connections at one time, over all listeners.", update=CLUSTER_WIDE
    )
    max_connections_per_ip = int32(
        MAX_INT, at_least(0), "Most connections at one time from one address.", update=CLUSTER_WIDE
    )
    max_connections_per_ip_overrides = string(
        "",
        _host_counts,
        "Other limits than max.connections.per.ip for some addresses, as ADDRESS:COUNT.",
        update=CLUSTER_WIDE,
    )
    max_incremental_fetch_session_cache_slots = int32(1000, at_least(0), "Most fetch sessions that are remembered.")
    max_request_partition_size_limit = int32(
        2000, at_least(1), "Most partitions in one answer to DescribeTopicPartitions, whatever the client asks for."
    )
    message_max_bytes = int32(MB + 12, at_least(0), "Broker's default for max.message.bytes.", update=CLUSTER_WIDE)
    min_insync_replicas = int32(
        1, at_least(1), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    num_partitions = int32(1, at_least(1), "Partitions of a topic created without a count.")
    offset_metadata_max_bytes = int32(4096, None, "Largest note that a client may leave beside a committed offset.")
    offsets_retention_check_interval_ms = int64(
        600_000, at_least(1), "How often committed offsets are looked over for old ones."
    )
    offsets_retention_minutes = int32(7 * 24 * 60, at_least(1), "How long the offsets of an empty group are kept.")
    offsets_topic_num_partitions = int32(50, at_least(1), "Partitions of the topic that holds committed offsets.")
    offsets_topic_replication_factor = int16(
        3,
        at_least(1),
        "Replicas of the topic that holds committed offsets; never more than there are brokers in a cluster of one.",
    )
    offsets_topic_segment_bytes = int32(
        100 * MB, at_least(1), "Segment size of the topic that holds committed offsets."
    )
    producer_id_expiration_check_interval_ms = int32(
        600_000, at_least(1), "How often idle producer ids are looked for."
    )
    producer_id_expiration_ms = int32(
        DAY_MS, at_least(1), "How long a partition remembers a producer that sends nothing.", update=CLUSTER_WIDE
    )
    queued_max_request_bytes = int64(
        256 * MB,
        None,
        "Most bytes of requests in memory for all connections together; over it, reading stops.",
    )
    quota_window_num = int32(11, at_least(1), "Samples kept for the quotas of clients.")
    quota_window_size_seconds = int32(1, at_least(1), "Length of a sample for the quotas of clients.")
    replica_fetch_backoff_ms = int32(1000, at_least(0), "How long a follower rests after a failed fetch.")
    replica_fetch_max_bytes = int32(MB, at_least(0), "Bytes that a follower asks for of each partition.")
    replica_fetch_min_bytes = int32(1, None, "Bytes that a follower's fetch waits for.")
    replica_fetch_response_max_bytes = int32(10 * MB, at_least(0), "Bytes that a follower asks for in one response.")
    replica_fetch_wait_max_ms = int32(500, None, "How long a follower's fetch may wait for them.")
    replica_lag_time_max_ms = int64(30_000, None, "Lag after which a follower leaves the in-sync set.")
    replica_socket_timeout_ms = int32(30_000, None, "Timeout of connections to leaders.")
    reserved_broker_max_id = int32(1000, at_least(0), "Generated broker ids begin above this one.", retired=True)
    socket_listen_backlog_size = int32(50, at_least(1), "Connections that may wait to be accepted.", acts=False)
    socket_receive_buffer_bytes = int32(
        -1, None, "The system's receive buffer of a connection; -1 leaves it to the system."
    )
    socket_request_max_bytes = int32(100 * MB, at_least(1), "Largest request.")
    socket_send_buffer_bytes = int32(
        102_400, None, "The system's send buffer of a connection; -1 leaves it to the system."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = int32(
        10_000, at_least(1), "How often transactions that took too long are aborted."
    )
    transaction_max_timeout_ms = int32(900_000, at_least(1), "Longest transaction timeout that a producer may ask for.")
    transaction_partition_verification_enable = flag(
        True, "Whether a partition asks the coordinator before it takes transactional records.", update=CLUSTER_WIDE
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = int32(
        3_600_000, at_least(1), "How often idle transactional ids are forgotten."
    )
    transaction_state_log_min_isr = int32(2, at_least(1), "min.insync.replicas of the topic that holds transactions.")
    transaction_state_log_num_partitions = int32(50, at_least(1), "Partitions of the topic that holds transactions.")
    transaction_state_log_replication_factor = int16(
        3,
        at_least(1),
        "Replicas of the topic that holds transactions; never more than there are brokers in a cluster of one.",
    )
    transaction_state_log_segment_bytes = int32(
        100 * MB, at_least(1), "Segment size of the topic that holds transactions."
    )
    transactional_id_expiration_ms = int32(7 * DAY_MS, at_least(1), "How long an idle transactional id is remembered.")
    unclean_leader_election_enable = flag(
        False, "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    zookeeper_connect = optional_string(
        "HOST:PORT,HOST:PORT/PATH of a ZooKeeper; unset: a cluster of one, its metadata in the data directory.",
        retired=True,
    )
    zookeeper_connection_timeout_ms = optional_int32(
        at_least(1),
        "How long the first connection to ZooKeeper may take; unset: the session timeout.",
        retired=True,
    )
    zookeeper_session_timeout_ms = int32(
        18_000, at_least(1), "Silence after which ZooKeeper gives a broker up.", retired=True
    )
    kbroker_metrics_listeners = joined_strings(
        (), "Where metrics and health are served over HTTP, as HOST:PORT; empty: nowhere."
    )
    kbroker_record_validation = string(
        "header",
        one_of("header", "full"),
        "What of a batch is checked on arrival: its header and checksum, or every record as well.",
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Typed and checked; UserError names the first property that is wrong."""
        given = {_ALIASES.get(name, name): text for name, text in properties.items()}
        values: dict[str, object] = {}
        for name, text in given.items():
            if name in BROKER_CONFIGS:
                try:
                    values[name] = BROKER_CONFIGS[name].parse(text)
                except ValueError as problem:
                    raise UserError(str(problem)) from None
        config = cls(values, given)
        config.__dict__["warnings"] = tuple(filter(None, map(_warning, given)))
        config.set_dynamic({}, {})
        config.__dict__["endpoints"] = _endpoints(config)
        config.__dict__["advertised_endpoints"] = _advertised_endpoints(config)
        config.__dict__["inter_broker_endpoint"] = _inter_broker_endpoint(config)
        return config

    endpoints: tuple[Endpoint, ...]
    """The listeners to open, in the order given."""
    advertised_endpoints: tuple[Endpoint, ...]
    """What clients are told. The caller replaces a port 0 by the bound one, an empty host by the machine's name."""
    inter_broker_endpoint: Endpoint
    topic_defaults: TopicConfig
    """What a topic without configs of its own gets."""

    dynamic_texts: Mapping[str, str]
    """What was set for this broker while it ran; it goes before `dynamic_default_texts`, and both before `texts`."""
    dynamic_default_texts: Mapping[str, str]
    """What was set for every broker of the cluster."""

    @property
    def data_dirs(self) -> tuple[str, ...]:
        return self.log_dirs or (self.log_dir,)

    def set_dynamic(self, own: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """The one way in which values change: in place, so that whoever holds the config acts by them from now on.

        A text that is not known, not valid or not for this level is passed over: another release may have left it.
        """
        self.__dict__["dynamic_texts"] = MappingProxyType(_valid_dynamic(own, is_per_broker=True))
        self.__dict__["dynamic_default_texts"] = MappingProxyType(_valid_dynamic(defaults, is_per_broker=False))
        effective = {**self.texts, **self.dynamic_default_texts, **self.dynamic_texts}
        for name, key in _DYNAMIC_CONFIGS.items():
            if name not in _FIXED_WHILE_RUNNING:
                self.__dict__[key.attribute] = key.parse(effective[name]) if name in effective else key.default
        inherited = {name: _inherited(key, self, effective) for name, key in TOPIC_CONFIGS.items()}
        self.__dict__["topic_defaults"] = TopicConfig(inherited, {})


TOPIC_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(TopicConfig)}
BROKER_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(BrokerConfig)}

_DYNAMIC_CONFIGS: Final = {name: key for name, key in BROKER_CONFIGS.items() if key.update is not UpdateMode.READ_ONLY}
# Kafka opens and closes listeners as it runs; here that takes a restart.
_FIXED_WHILE_RUNNING: Final = ("listeners", "listener.security.protocol.map")
# Brokers know these only while they run: kafka-reassign-partitions sets them.
_ONLY_DYNAMIC: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)

_ALIASES: Final = {"node.id": "broker.id"}

# Known to Kafka 3.9 alone, and about machinery that does not exist here.
_WITHOUT_EFFECT: Final = (
    "alter.config.policy.kraft.compatibility.enable",
    "auto.include.jmx.reporter",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "controlled.shutdown.",
    "delegation.token.master.key",
    "eligible.leader.replicas.enable",
    "group.coordinator.new.enable",
    "group.share.max.groups",
    "group.share.enable",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "offsets.commit.required.acks",
    "password.encoder.",
    "sasl.",
    "ssl.",
    "zookeeper.clientCnxnSocket",
    "zookeeper.max.in.flight.requests",
    "zookeeper.metadata.migration.enable",
    "zookeeper.set.acl",
    "zookeeper.ssl.",
)
"""Names, and beginnings of names where they end in a dot."""


def _warning(name: str) -> str | None:
    key = BROKER_CONFIGS.get(name)
    if key is not None and key.acts:
        return None
    if key is not None or any(name == each or (each[-1] == "." and name.startswith(each)) for each in _WITHOUT_EFFECT):
        return f"{name} has no effect in kbroker"
    import difflib  # only for a mistyped name: a broker that starts without one does not pay for it

    nearest = difflib.get_close_matches(name, [*BROKER_CONFIGS, *_ALIASES], n=1)
    return f"{name} is not a known config" + (f"; did you mean {nearest[0]}?" if nearest else "")


_SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_WILDCARDS: Final = ("0.0.0.0", "::")


def _endpoints(config: BrokerConfig) -> tuple[Endpoint, ...]:
    found = _parse_endpoints("listeners", config.listeners, config)
    if not found:
        raise UserError("listeners names no listener: give at least one NAME://HOST:PORT")
    taken: dict[tuple[str, int], Endpoint] = {}
    for endpoint in found:
        other = taken.setdefault((endpoint.host, endpoint.port or -len(taken) - 1), endpoint)
        if other is not endpoint:
            raise UserError(f"listeners has two listeners on one address: {other} and {endpoint}")
    return found


def _advertised_endpoints(config: BrokerConfig) -> tuple[Endpoint, ...]:
    found = _parse_endpoints("advertised.listeners", config.advertised_listeners or config.listeners, config)
    names = {endpoint.name for endpoint in config.endpoints}
    for endpoint in found:
        if endpoint.host in _WILDCARDS:
            raise UserError(
                f"clients cannot connect to {endpoint.host}: set advertised.listeners to an address that they can reach"
            )
        if endpoint.name not in names:
            raise UserError(f"advertised.listeners has {endpoint}, but listeners has no {endpoint.name}")
    return found


def _inter_broker_endpoint(config: BrokerConfig) -> Endpoint:
    name = config.inter_broker_listener_name
    for endpoint in config.advertised_endpoints:
        if endpoint.name == name or (name is None and endpoint.security_protocol == "PLAINTEXT"):
            return endpoint
    if name is None:
        return config.advertised_endpoints[0]
    raise UserError(f"inter.broker.listener.name={name} is not among the advertised listeners")


def _parse_endpoints(source: str, texts: tuple[str, ...], config: BrokerConfig) -> tuple[Endpoint, ...]:
    protocols = _protocols(config)
    endpoints: dict[str, Endpoint] = {}
    for text in filter(None, texts):
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        name = name.upper()
        if not (separator and colon and port.isascii() and port.isdigit() and int(port) < 65536 and name):
            raise UserError(f"{source} has '{text}', which is not NAME://HOST:PORT")
        if name in endpoints:
            raise UserError(f"{source} names {name} twice")
        if name in (other.upper() for other in config.controller_listener_names):
            continue
        if name not in protocols:
            raise UserError(f"{source} has {name}, which listener.security.protocol.map does not explain")
        endpoints[name] = Endpoint(name, host.removeprefix("[").removesuffix("]"), int(port), protocols[name])
    return tuple(endpoints.values())


def _protocols(config: BrokerConfig) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for pair in config.listener_security_protocol_map:
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or protocol not in _SECURITY_PROTOCOLS:
            raise UserError(f"listener.security.protocol.map has '{pair}', which is not NAME:PROTOCOL")
        protocols[name] = protocol
    return protocols


def topic_config(defaults: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The effective configs of a topic; all topics without overrides share one object.

    Overrides that are unknown or do not parse, from a newer release perhaps, are passed over.
    """
    if not overrides:
        return defaults.topic_defaults
    values = {name: defaults.topic_defaults.value_of(name) for name in TOPIC_CONFIGS}
    for name, text in overrides.items():
        if name in TOPIC_CONFIGS:
            with suppress(ValueError):
                values[name] = TOPIC_CONFIGS[name].parse(text)
    return TopicConfig(values, overrides)


def _inherited(key: ConfigKey[Any], defaults: BrokerConfig, given: Mapping[str, str]) -> object:
    """What a topic that says nothing gets: the first broker config that was given, else the default."""
    for name, factor in key.fallbacks:
        if name in given:
            value = defaults.value_of(name)
            # A negative time says "without limit", in whatever unit.
            if isinstance(value, int) and factor != 1:
                value = -1 if value < 0 else value * factor
            return value
    return key.default


def _valid_dynamic(texts: Mapping[str, str], *, is_per_broker: bool) -> dict[str, str]:
    return {
        name: text
        for name, text in texts.items()
        if validate_dynamic_configs({name: text}, is_per_broker=is_per_broker) is None
    }


def validate_dynamic_configs(texts: Mapping[str, str], *, is_per_broker: bool) -> str | None:
    """Why a running broker cannot take these configs (`is_per_broker`), or a cluster as defaults; None if it can.

    A name that is not known is taken, as Kafka takes it: it may be for a plugin.
    """
    known = {name: BROKER_CONFIGS[name] for name in texts if name in BROKER_CONFIGS}
    if "node.id" in texts or any(key.update is UpdateMode.READ_ONLY for key in known.values()):
        names = [name for name in texts if name == "node.id" or (name in known and name not in _DYNAMIC_CONFIGS)]
        return f"Cannot update these configs dynamically: {', '.join(names)}"
    if names := [name for name in known if name in _FIXED_WHILE_RUNNING]:
        return f"{', '.join(names)} cannot change while the broker runs: set it in its properties and restart"
    if names := [name for name, key in known.items() if key.update is UpdateMode.PER_BROKER]:
        return f"These security configs can be updated only with the prefix of a listener: {', '.join(names)}"
    for name, text in texts.items():
        key = known.get(name) or (_THROTTLED_RATE if name in _ONLY_DYNAMIC else None)
        try:
            if key is not None:
                key.parse(text)
        except ValueError as problem:
            return f"Invalid value: {problem}"
    if not is_per_broker and (names := [name for name in texts if name.startswith("listener.name.")]):
        return f"Cannot update these configs at default cluster level, a broker id is needed: {', '.join(names)}"
    return None


_THROTTLED_RATE: Final = int64(MAX_LONG, at_least(0), "Bytes of throttled replication in a second.")


def validate_topic_configs(overrides: Mapping[str, str | None]) -> str | None:
    """What makes the overrides invalid (INVALID_CONFIG), or None."""
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            return f"Unknown topic config name: {name}"
        if text is None:
            return f"Topic config {name} has no value"
        try:
            values[name] = key.parse(text)
        except ValueError as problem:
            return f"Invalid value: {problem}"
    if values.get("remote.storage.enable"):
        return "remote.storage.enable=true needs tiered storage, which this broker does not have"
    if values.get("min.compaction.lag.ms", 0) > values.get("max.compaction.lag.ms", MAX_LONG):
        return "min.compaction.lag.ms is larger than max.compaction.lag.ms"
    return None


def describe_topic_configs(defaults: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every topic config with its effective value, and where each value on the way to it comes from."""
    effective = topic_config(defaults, overrides)
    layers = _layers(defaults, {})
    entries = []
    for name, key in TOPIC_CONFIGS.items():
        if key.is_retired and name not in overrides:
            continue
        value = key.format(effective.value_of(name))
        names = [fallback.name for fallback in key.fallbacks]
        synonyms = _synonyms(names, layers)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        # As in Kafka: the synonyms begin with the first fallback, and there are none while it has no value.
        synonyms = _from_name(names[0], synonyms) if names else []
        if name in overrides:
            source = ConfigSource.DYNAMIC_TOPIC_CONFIG
            synonyms.insert(0, ConfigSynonym(name, value, source))
        entries.append(ConfigEntry(name, value, source, key.type, tuple(synonyms), key.documentation))
    return entries


def describe_broker_configs(config: BrokerConfig, facts: Mapping[str, str]) -> list[ConfigEntry]:
    """Every broker config; `facts` are values that came out otherwise than given: an id, ports, directories."""
    layers = _layers(config, facts)
    entries = []
    for name, key in BROKER_CONFIGS.items():
        if key.is_retired and name not in config.texts:
            continue
        value = facts.get(name, key.format(config.value_of(name)))
        synonyms = _from_name(name, _synonyms(_SYNONYMS.get(name, (name,)), layers))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        is_read_only = key.update is UpdateMode.READ_ONLY
        entry = ConfigEntry(name, value, source, key.type, tuple(synonyms), key.documentation, False, is_read_only)
        entries.append(_without_secret(entry) if key.is_sensitive else entry)
    entries += [
        _unknown_entry(name, text, ConfigSource.DYNAMIC_BROKER_CONFIG)
        for name, text in config.dynamic_texts.items()
        if name not in BROKER_CONFIGS
    ]
    broker_id = next(entry for entry in entries if entry.name == "broker.id")
    node_id = broker_id._replace(name="node.id", documentation="The same as broker.id, under KRaft's name.")
    return [*entries, node_id._replace(synonyms=(ConfigSynonym("node.id", node_id.value, node_id.source),))]


def describe_default_broker_configs(config: BrokerConfig) -> list[ConfigEntry]:
    """What was set for all brokers at once."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    entries = []
    for name, text in config.dynamic_default_texts.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            entries.append(_unknown_entry(name, text, source))
        else:
            synonyms = (ConfigSynonym(name, text, source),)
            entries.append(ConfigEntry(name, text, source, key.type, synonyms, key.documentation))
    return entries


def _unknown_entry(name: str, text: str, source: ConfigSource) -> ConfigEntry:
    """Who knows what it holds: it is not shown."""
    if name in _ONLY_DYNAMIC:
        synonyms = (ConfigSynonym(name, text, source),)
        return ConfigEntry(name, text, source, ConfigType.LONG, synonyms, _THROTTLED_RATE.documentation)
    return ConfigEntry(name, None, source, ConfigType.UNKNOWN, (ConfigSynonym(name, None, source),), None, True)


def _without_secret(entry: ConfigEntry) -> ConfigEntry:
    synonyms = tuple(synonym._replace(value=None) for synonym in entry.synonyms)
    return entry._replace(value=None, synonyms=synonyms, is_sensitive=True)


_Layers = tuple[tuple[ConfigSource, Mapping[str, str]], ...]


def _layers(config: BrokerConfig, facts: Mapping[str, str]) -> _Layers:
    """Where a broker's values come from, what counts most first."""
    return (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, config.dynamic_texts),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, config.dynamic_default_texts),
        (ConfigSource.STATIC_BROKER_CONFIG, {**config.texts, **facts}),
    )


def _synonyms(names: Sequence[str], layers: _Layers) -> list[ConfigSynonym]:
    """All values under these names, from the one that counts to the defaults."""
    found = [ConfigSynonym(name, texts[name], source) for source, texts in layers for name in names if name in texts]
    for name in names:
        default = BROKER_CONFIGS[name].default_text
        if default is not None:
            found.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return found


def _from_name(name: str, synonyms: list[ConfigSynonym]) -> list[ConfigSynonym]:
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


_SYNONYMS: Final = {
    fallback.name: tuple(each.name for each in key.fallbacks)
    for key in TOPIC_CONFIGS.values()
    if len(key.fallbacks) > 1
    for fallback in key.fallbacks
}
"""Broker configs that say one thing in several units."""


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: # and ! begin comments, = or : or a blank ends the name, a backslash continues a line."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        name, rest = _split_property(line)
        properties[_unescape(name)] = _unescape(rest)
    return properties


def _logical_lines(text: str) -> Iterable[str]:
    pending = ""
    # Not splitlines(): a form feed or a U+2028 inside a value is no end of a line.
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = line.lstrip(" \t\f")
        if not pending and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            pending += stripped[:-1]
            continue
        yield pending + stripped
        pending = ""
    if pending:
        yield pending


def _split_property(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:end], rest


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            out.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(4))
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise UserError(f"the properties have \\u{digits}, which is not \\u and four hex digits") from None
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
