"""Broker configs: the table, typed values from properties, and the rules for dynamic updates."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from kbroker.config.endpoints import Endpoint, advertised_endpoints, inter_broker_endpoint, listener_endpoints
from kbroker.config.inactive import InactiveBrokerConfig
from kbroker.config.key import (
    CLUSTER_WIDE,
    DAY_MS,
    MAX_DOUBLE,
    MAX_INT,
    MAX_LONG,
    MB,
    PER_BROKER,
    ConfigKey,
    InvalidValue,
    UpdateMode,
    at_least,
    between,
    double,
    flag,
    int16,
    int32,
    int64,
    joined_strings,
    keys_of,
    one_of,
    optional_int32,
    optional_int64,
    optional_string,
    password,
    some_of,
    string,
    strings,
)
from kbroker.config.listener import (
    RELOADABLE,
    SECURITY_CONFIGS,
    ListenerConfig,
    listener_config,
    normal_name,
    split_name,
)
from kbroker.config.sasl import SaslConfig
from kbroker.config.tls import TlsConfig
from kbroker.config.topic import CODECS, TIMESTAMP_TYPES, TOPIC_CONFIGS, TopicConfig, gzip_level
from kbroker.config.zookeeper import ZooKeeperConfig
from kbroker.errors import UserError

__all__ = [
    "BROKER_CONFIGS",
    "ONLY_DYNAMIC",
    "RACK_AWARE_SELECTOR",
    "THROTTLED_RATE",
    "BrokerConfig",
    "parse_host_counts",
    "validate_dynamic_configs",
]

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _host_counts(value: str) -> str | None:
    problem = parse_host_counts(value)
    return problem if isinstance(problem, str) else None


def parse_host_counts(text: str) -> dict[str, int] | str:
    """Parses ADDRESS:COUNT,ADDRESS:COUNT. Returns the problem, as text, if the value is invalid."""
    counts = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, count = pair.rpartition(":")
        if not host or not count.isdigit():
            return f"must be a list of ADDRESS:COUNT; '{pair}' is not"
        counts[host.strip("[]")] = int(count)
    return counts


def _migration_policy(value: str) -> str | None:
    choices = ("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL")
    return None if value.upper() in choices else f"must be one of {', '.join(choices)}"


class BrokerConfig(TlsConfig, SaslConfig, ZooKeeperConfig, InactiveBrokerConfig):
    """Effective configs of a broker: its properties, overridden by dynamic configs.

    Attributes are read-only. Only `set_dynamic` changes values, in place.
    """

    texts: Mapping[str, str]
    """The properties of the broker as text, including unknown ones."""
    warnings: tuple[str, ...]
    """One line for each property that is unknown or has no effect."""

    advertised_listeners = joined_strings(
        (),
        "Listener addresses that the broker publishes to clients, as NAME://HOST:PORT. If empty, the value of "
        "listeners is used.",
    )
    authorizer_class_name = string(
        "",
        None,
        "Authorizer of requests: kafka.security.authorizer.AclAuthorizer or "
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer, which are the same here. If empty, all requests are "
        "allowed. super.users lists principals that may do everything, separated by ';', and "
        "allow.everyone.if.no.acl.found opens resources that have no ACL.",
    )
    auto_create_topics_enable = flag(
        True, "Whether a metadata request for a topic that does not exist creates the topic."
    )
    auto_leader_rebalance_enable = flag(
        True, "Whether the controller moves leadership back to preferred replicas in the background."
    )
    broker_id = int32(
        -1,
        at_least(-1),
        "Id of this broker in the cluster. If -1, the broker generates an id and stores it in its data directory.",
    )
    broker_rack = optional_string("Rack of this broker, for the placement of replicas and for consumers in its rack.")
    compression_gzip_level = int32(
        -1, gzip_level, "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_lz4_level = int32(
        9, between(1, 17), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_type = string(
        "producer", one_of(*CODECS), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    compression_zstd_level = int32(
        3, between(-131072, 22), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    connections_max_idle_ms = int64(
        600_000, None, "Idle connections are closed after this time. If negative, they are never closed."
    )
    controller_listener_names = joined_strings(
        (), "Names of listeners that a KRaft controller uses. The broker ignores these listeners."
    )
    controller_quota_window_num = int32(
        11, at_least(1), "Number of samples kept in memory for controller mutation quotas."
    )
    controller_quota_window_size_seconds = int32(
        1, at_least(1), "Time span of each sample for controller mutation quotas."
    )
    controlled_shutdown_enable = flag(
        True, "Whether the broker moves its leaderships to other brokers before it shuts down."
    )
    controlled_shutdown_max_retries = int32(
        3,
        None,
        "How many times a controlled shutdown is tried, if replicas that should take over leaderships are not in sync.",
        retired=True,
    )
    controlled_shutdown_retry_backoff_ms = int64(
        5_000, None, "Maximum time between two attempts of a controlled shutdown.", retired=True
    )
    default_replication_factor = int32(
        1, at_least(1), "Replication factor of topics that are created automatically or without a replication factor."
    )
    delegation_token_expiry_check_interval_ms = int64(
        3_600_000, at_least(1), "Interval at which expired delegation tokens are removed."
    )
    delegation_token_expiry_time_ms = int64(
        DAY_MS, at_least(1), "Time after which a delegation token expires if it is not renewed."
    )
    delegation_token_max_lifetime_ms = int64(
        7 * DAY_MS, at_least(1), "Maximum lifetime of a delegation token, including renewals."
    )
    delegation_token_secret_key = password(
        "Secret key used to create and verify delegation tokens. Without it there are none."
    )
    delete_topic_enable = flag(True, "Whether topics can be deleted.")
    fetch_max_bytes = int32(
        55 * MB,
        at_least(1024),
        "Maximum number of bytes returned for a fetch request, even if the client requests more.",
    )
    group_consumer_assignors = strings(
        ("uniform", "range"), None, "Server-side assignors for consumer groups. The first one is the default."
    )
    group_consumer_heartbeat_interval_ms = int32(
        5000, at_least(1), "Heartbeat interval given to the members of a consumer group."
    )
    group_consumer_max_size = int32(MAX_INT, at_least(1), "Maximum number of members in a consumer group.")
    group_consumer_migration_policy = string(
        "bidirectional",
        _migration_policy,
        "Direction in which a non-empty group can be converted between the classic and the consumer protocol.",
    )
    group_consumer_session_timeout_ms = int32(
        45_000, at_least(1), "Timeout to detect failed members of a consumer group."
    )
    group_coordinator_rebalance_protocols = strings(
        ("classic", "consumer", "streams"),
        some_of("consumer", "classic", "share", "streams"),
        "Enabled rebalance protocols. Only the consumer protocol can be disabled.",
    )
    group_initial_rebalance_delay_ms = int32(
        3_000,
        at_least(0),
        "Time that the group coordinator waits for more members to join a new group before the first rebalance.",
    )
    group_max_session_timeout_ms = int32(
        1_800_000, None, "Maximum session timeout that a member of a classic group can request."
    )
    group_max_size = int32(MAX_INT, at_least(1), "Maximum number of members in a classic group.")
    group_min_session_timeout_ms = int32(
        6_000, None, "Minimum session timeout that a member of a classic group can request."
    )
    inter_broker_listener_name = optional_string("Name of the listener used for communication between brokers.")
    leader_imbalance_check_interval_seconds = int64(
        300, at_least(1), "Interval at which the controller checks whether leadership is balanced."
    )
    leader_imbalance_per_broker_percentage = int32(
        10,
        at_least(0),
        "Share of a broker's preferred leaderships that may be on other brokers before the controller rebalances, "
        "in percent.",
        retired=True,
    )
    listener_security_protocol_map = joined_strings(
        ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT"),
        "Map between listener names and security protocols, as NAME:PROTOCOL.",
        update=PER_BROKER,
    )
    listeners = joined_strings(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://HOST:PORT. The default accepts local connections only, because clients "
        "are not authenticated.",
        update=PER_BROKER,
    )
    log_cleaner_backoff_ms = int64(
        15_000, at_least(0), "Time that the log cleaner sleeps when there are no logs to clean.", update=CLUSTER_WIDE
    )
    log_cleaner_dedupe_buffer_size = int64(
        128 * MB, None, "Memory for the log cleaner's key map. Each key takes 24 bytes.", update=CLUSTER_WIDE
    )
    log_cleaner_delete_retention_ms = int64(
        DAY_MS, at_least(0), "Broker's default for delete.retention.ms.", update=CLUSTER_WIDE
    )
    log_cleaner_enable = flag(True, "Whether the log cleaner runs.")
    log_cleaner_io_buffer_load_factor = double(
        0.9,
        None,
        "Load factor of the log cleaner's key map: the share that is used before the cleaner writes the compacted log.",
        update=CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size = int32(
        512 * 1024,
        at_least(0),
        "Memory for the log cleaner's I/O buffers. One half is for reading, the other for writing.",
        update=CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second = double(
        MAX_DOUBLE,
        None,
        "Maximum rate at which the log cleaner reads and writes, in bytes per second.",
        update=CLUSTER_WIDE,
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
    log_cleaner_threads = int32(
        1, at_least(0), "Number of logs that the log cleaner compacts at a time.", update=CLUSTER_WIDE
    )
    log_cleanup_policy = strings(
        ("delete",), some_of("compact", "delete"), "Broker's default for cleanup.policy.", update=CLUSTER_WIDE
    )
    log_dir = string("kbroker-data", None, "Data directory. Used if log.dirs is not set.")
    log_dirs = joined_strings((), "Data directories. If empty, log.dir is used.")
    log_flush_interval_messages = int64(
        MAX_LONG, at_least(1), "Broker's default for flush.messages.", update=CLUSTER_WIDE
    )
    log_flush_interval_ms = optional_int64(
        None, "Broker's default for flush.ms. If not set, log.flush.scheduler.interval.ms is used.", update=CLUSTER_WIDE
    )
    log_flush_offset_checkpoint_interval_ms = int32(
        60_000, at_least(0), "Interval at which the recovery points of logs are written to disk."
    )
    log_flush_scheduler_interval_ms = int64(
        MAX_LONG, None, "Interval at which the log flusher checks whether a log needs to be flushed to disk."
    )
    log_flush_start_offset_checkpoint_interval_ms = int32(
        60_000, at_least(0), "Interval at which log start offsets are written to disk.", has_effect=False
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
        "Delay after startup before the first run of retention, flushing and checkpointing.",
        has_effect=False,
    )
    log_local_retention_bytes = int64(
        -2, at_least(-2), "Broker's default for local.retention.bytes.", has_effect=False, update=CLUSTER_WIDE
    )
    log_local_retention_ms = int64(
        -2, at_least(-2), "Broker's default for local.retention.ms.", has_effect=False, update=CLUSTER_WIDE
    )
    log_message_downconversion_enable = flag(
        True, "Broker's default for message.downconversion.enable.", has_effect=False, retired=True
    )
    log_message_timestamp_after_max_ms = int64(
        3_600_000, at_least(0), "Broker's default for message.timestamp.after.max.ms.", update=CLUSTER_WIDE
    )
    log_message_timestamp_before_max_ms = int64(
        MAX_LONG, at_least(0), "Broker's default for message.timestamp.before.max.ms.", update=CLUSTER_WIDE
    )
    log_message_timestamp_type = string(
        "CreateTime", one_of(*TIMESTAMP_TYPES), "Broker's default for message.timestamp.type.", update=CLUSTER_WIDE
    )
    log_preallocate = flag(False, "Broker's default for preallocate.", update=CLUSTER_WIDE)
    log_retention_bytes = int64(-1, None, "Broker's default for retention.bytes.", update=CLUSTER_WIDE)
    log_retention_check_interval_ms = int64(
        300_000, at_least(1), "Interval at which the broker checks whether segments are eligible for deletion."
    )
    log_retention_hours = int32(
        168,
        None,
        "Broker's default for retention.ms, in hours. log.retention.minutes and log.retention.ms override it.",
    )
    log_retention_minutes = optional_int32(
        None, "Broker's default for retention.ms, in minutes. log.retention.ms overrides it."
    )
    log_retention_ms = optional_int64(None, "Broker's default for retention.ms.", update=CLUSTER_WIDE)
    log_roll_hours = int32(168, at_least(1), "Broker's default for segment.ms, in hours. log.roll.ms overrides it.")
    log_roll_jitter_hours = int32(
        0, at_least(0), "Broker's default for segment.jitter.ms, in hours. log.roll.jitter.ms overrides it."
    )
    log_roll_jitter_ms = optional_int64(at_least(0), "Broker's default for segment.jitter.ms.", update=CLUSTER_WIDE)
    log_roll_ms = optional_int64(at_least(1), "Broker's default for segment.ms.", update=CLUSTER_WIDE)
    log_segment_bytes = int32(1024 * MB, at_least(14), "Broker's default for segment.bytes.", update=CLUSTER_WIDE)
    log_segment_delete_delay_ms = int64(
        60_000, at_least(0), "Broker's default for file.delete.delay.ms.", update=CLUSTER_WIDE
    )
    max_connection_creation_rate = int32(
        MAX_INT,
        at_least(0),
        "Maximum number of new connections per second. Further connections are delayed.",
        update=CLUSTER_WIDE,
    )
    max_connections = int32(
        MAX_INT, at_least(0), "Maximum number of connections on all listeners.", update=CLUSTER_WIDE
    )
    max_connections_per_ip = int32(
        MAX_INT, at_least(0), "Maximum number of connections from one IP address.", update=CLUSTER_WIDE
    )
    max_connections_per_ip_overrides = string(
        "",
        _host_counts,
        "Overrides of max.connections.per.ip for single IP addresses, as ADDRESS:COUNT.",
        update=CLUSTER_WIDE,
    )
    max_incremental_fetch_session_cache_slots = int32(
        1000, at_least(0), "Maximum number of incremental fetch sessions."
    )
    max_request_partition_size_limit = int32(
        2000,
        at_least(1),
        "Maximum number of partitions in a DescribeTopicPartitions response, even if the client requests more.",
    )
    message_max_bytes = int32(MB + 12, at_least(0), "Broker's default for max.message.bytes.", update=CLUSTER_WIDE)
    min_insync_replicas = int32(
        1, at_least(1), "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    num_partitions = int32(
        1, at_least(1), "Number of partitions of topics that are created automatically or without a partition count."
    )
    offset_metadata_max_bytes = int32(
        4096, None, "Maximum size of the metadata that a client can commit with an offset."
    )
    offsets_retention_check_interval_ms = int64(
        600_000, at_least(1), "Interval at which the broker checks for expired committed offsets."
    )
    offsets_retention_minutes = int32(
        7 * 24 * 60, at_least(1), "Committed offsets are deleted after this time once their group has no members."
    )
    offsets_topic_num_partitions = int32(50, at_least(1), "Number of partitions of __consumer_offsets.")
    offsets_topic_replication_factor = int16(
        3,
        at_least(1),
        "Replication factor of __consumer_offsets. A single node (no zookeeper.connect) uses 1.",
    )
    offsets_topic_segment_bytes = int32(100 * MB, at_least(1), "Segment size of __consumer_offsets.")
    producer_id_expiration_check_interval_ms = int32(
        600_000, at_least(1), "Interval at which the broker checks for expired producer ids."
    )
    producer_id_expiration_ms = int32(
        DAY_MS,
        at_least(1),
        "A partition leader removes the state of a producer id that has not written for this time.",
        update=CLUSTER_WIDE,
    )
    queued_max_request_bytes = int64(
        256 * MB,
        None,
        "Maximum total size of the requests in memory. Above it, the broker stops reading from connections.",
    )
    quota_window_num = int32(11, at_least(1), "Number of samples kept in memory for client quotas.")
    quota_window_size_seconds = int32(1, at_least(1), "Time span of each sample for client quotas.")
    replica_fetch_backoff_ms = int32(1000, at_least(0), "Time that a follower waits after a failed fetch.")
    replica_fetch_max_bytes = int32(MB, at_least(0), "Number of bytes that a follower fetches from each partition.")
    replica_fetch_min_bytes = int32(1, None, "Minimum number of bytes in a response to a follower's fetch.")
    replica_fetch_response_max_bytes = int32(
        10 * MB, at_least(0), "Maximum number of bytes in a response to a follower's fetch."
    )
    replica_fetch_wait_max_ms = int32(
        500, None, "Maximum time that a leader waits for replica.fetch.min.bytes before it responds to a follower."
    )
    replica_lag_time_max_ms = int64(
        30_000, None, "A follower that has not caught up with the leader for this time is removed from the ISR."
    )
    replica_selector_class = optional_string(
        "How a leader selects the replica that a consumer reads from: itself, which is the default, or an in-sync "
        "follower in the consumer's rack (client.rack).",
        one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    )
    replica_socket_timeout_ms = int32(30_000, None, "Timeout of requests to leaders.")
    replication_quota_window_num = int32(11, at_least(1), "Number of samples kept in memory for replication quotas.")
    replication_quota_window_size_seconds = int32(1, at_least(1), "Time span of each sample for replication quotas.")
    request_timeout_ms = int32(30_000, None, "Timeout of requests that this broker sends.")
    reserved_broker_max_id = int32(1000, at_least(0), "Generated broker ids are larger than this number.", retired=True)
    security_inter_broker_protocol = string(
        "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "Security protocol between brokers. Used if inter.broker.listener.name is not set.",
    )
    socket_listen_backlog_size = int32(
        50, at_least(1), "Maximum number of connections that wait to be accepted.", has_effect=False
    )
    socket_receive_buffer_bytes = int32(
        -1, None, "Receive buffer of sockets (SO_RCVBUF). If -1, the default of the operating system is used."
    )
    socket_request_max_bytes = int32(100 * MB, at_least(1), "Maximum size of a request.")
    socket_send_buffer_bytes = int32(
        102_400, None, "Send buffer of sockets (SO_SNDBUF). If -1, the default of the operating system is used."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = int32(
        10_000, at_least(1), "Interval at which timed out transactions are aborted."
    )
    transaction_max_timeout_ms = int32(900_000, at_least(1), "Maximum transaction timeout that a producer can request.")
    transaction_partition_verification_enable = flag(
        True,
        "Whether a partition leader verifies with the transaction coordinator that the partition is part of the "
        "transaction.",
        update=CLUSTER_WIDE,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = int32(
        3_600_000, at_least(1), "Interval at which expired transactional ids are removed."
    )
    transaction_state_log_min_isr = int32(2, at_least(1), "min.insync.replicas of __transaction_state.")
    transaction_state_log_num_partitions = int32(50, at_least(1), "Number of partitions of __transaction_state.")
    transaction_state_log_replication_factor = int16(
        3,
        at_least(1),
        "Replication factor of __transaction_state. A single node (no zookeeper.connect) uses 1.",
    )
    transaction_state_log_segment_bytes = int32(100 * MB, at_least(1), "Segment size of __transaction_state.")
    transactional_id_expiration_ms = int32(
        7 * DAY_MS,
        at_least(1),
        "The transaction coordinator removes a transactional id that has not been used for this time.",
    )
    unclean_leader_election_enable = flag(
        False, "Broker's default for the topic config of the same name.", update=CLUSTER_WIDE
    )
    kbroker_metrics_listeners = joined_strings(
        (), "Addresses of the HTTP endpoints for metrics and health checks, as HOST:PORT. If empty, there are none."
    )
    kbroker_metrics_security_protocol = string(
        "PLAINTEXT",
        one_of("PLAINTEXT", "SSL"),
        "SSL: the HTTP endpoints use TLS, with the ssl configs of the broker or those with the prefix "
        "listener.name.metrics. With listener.name.metrics.ssl.client.auth they also ask for client certificates.",
    )
    kbroker_metrics_token_file = optional_string(
        "File with a bearer token in its first line, which clients of the HTTP endpoints must send. /healthz and "
        "/readyz stay open. The environment variable KBROKER_METRICS_TOKEN has the same effect.",
    )
    kbroker_log_dir_reserve_bytes = int64(
        8 << 20,
        at_least(0),
        "Size of the file that keeps space free in each data directory. When the disk is full, it is deleted, so that "
        "metadata changes, deletions and retention still work. It is created again when there is space.",
    )
    kbroker_record_validation = string(
        "auto",
        one_of("auto", "header", "full"),
        "Validation of batches on arrival. header checks the header and the checksum, full also checks every record, "
        "as Kafka does. auto is full if the hot path is compiled, else header.",
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Parses and validates properties. Raises UserError if one is invalid, and names the first."""
        given = {_ALIASES[name]: text for name, text in properties.items() if name in _ALIASES}
        given |= {normal_name(name): text for name, text in properties.items() if name not in _ALIASES}
        values: dict[str, object] = {}
        for name, text in given.items():
            if name in BROKER_CONFIGS:
                try:
                    values[name] = BROKER_CONFIGS[name].parse(text)
                except ValueError as problem:
                    raise UserError(str(problem)) from None
        config = cls(values, given)
        config.set_dynamic(own={}, defaults={})
        config.__dict__["endpoints"] = listener_endpoints(config)
        config.__dict__["warnings"] = (*filter(None, map(_warning, given)), *_listener_warnings(config))
        config.__dict__["advertised_endpoints"] = advertised_endpoints(config)
        config.__dict__["inter_broker_endpoint"] = inter_broker_endpoint(config)
        for endpoint in config.endpoints:
            config.listener_config(endpoint.name)  # raises UserError for an invalid value
        return config

    endpoints: tuple[Endpoint, ...]
    """The listeners to open, in the order of `listeners`."""
    advertised_endpoints: tuple[Endpoint, ...]
    """The addresses for clients. The caller replaces port 0 by the bound port, and an empty host by the host name."""
    inter_broker_endpoint: Endpoint
    topic_defaults: TopicConfig
    """Configs of a topic without overrides."""

    dynamic_texts: Mapping[str, str]
    """Dynamic configs of this broker. They override `dynamic_default_texts`, and both override `texts`."""
    dynamic_default_texts: Mapping[str, str]
    """Dynamic configs of all brokers of the cluster."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"BrokerConfig.{name} is read-only: change dynamic configs with set_dynamic()")

    @property
    def data_dirs(self) -> tuple[str, ...]:
        return self.log_dirs or (self.log_dir,)

    def listener_config(
        self, name: str, mechanism: str | None = None, *, dynamic: Mapping[str, str] | None = None
    ) -> ListenerConfig:
        """Returns the configs of a listener, and of a SASL mechanism there.

        `dynamic`: used instead of the current dynamic configs of this broker.
        """
        protocols = {endpoint.name: endpoint.security_protocol for endpoint in self.endpoints}
        texts = {**self.texts, **(self.dynamic_texts if dynamic is None else dynamic)}
        return listener_config(texts, name, security_protocol=protocols[name], mechanism=mechanism)

    def set_dynamic(self, *, own: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        """Replaces the dynamic configs of this broker (`own`) and of the cluster (`defaults`).

        Changes values in place: all parts of the broker share this object and read the new values from now on. Skips
        configs that are unknown, invalid or not allowed at their level: another release may have stored them.
        """
        self.__dict__["dynamic_texts"] = MappingProxyType(_valid_dynamic(own, is_per_broker=True))
        self.__dict__["dynamic_default_texts"] = MappingProxyType(_valid_dynamic(defaults, is_per_broker=False))
        effective = {**self.texts, **self.dynamic_default_texts, **self.dynamic_texts}
        for name, key in _DYNAMIC_CONFIGS.items():
            if name not in _FIXED_WHILE_RUNNING:
                self.__dict__[key.attribute] = key.parse(effective[name]) if name in effective else key.default
        inherited = {name: _inherited(key, self, effective) for name, key in TOPIC_CONFIGS.items()}
        self.__dict__["topic_defaults"] = TopicConfig(inherited, {})


BROKER_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(BrokerConfig)}

_DYNAMIC_CONFIGS: Final = {name: key for name, key in BROKER_CONFIGS.items() if key.update is not UpdateMode.READ_ONLY}
# Kafka updates these dynamically; kbroker needs a restart.
_FIXED_WHILE_RUNNING: Final = ("listeners", "listener.security.protocol.map")
# Dynamic configs that a properties file cannot set: kafka-reassign-partitions sets them.
ONLY_DYNAMIC: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
THROTTLED_RATE: Final = int64(MAX_LONG, at_least(0), "Maximum rate of throttled replication, in bytes per second.")
"""Key of the configs in ONLY_DYNAMIC."""

_ALIASES: Final = {"node.id": "broker.id", "delegation.token.master.key": "delegation.token.secret.key"}
"""Other name of a config -> its name, which wins if both are given."""

# Configs of Kafka 3.9 that Kafka 4.1 has removed and that have no effect in kbroker.
_WITHOUT_EFFECT: Final = (
    "alter.config.policy.kraft.compatibility.enable",
    "auto.include.jmx.reporter",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "eligible.leader.replicas.enable",
    "group.coordinator.new.enable",
    "group.share.max.groups",
    "group.share.enable",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "offsets.commit.required.acks",
    "password.encoder.",
    "zookeeper.max.in.flight.requests",
    "zookeeper.metadata.migration.enable",
)
"""An entry that ends in a dot is a prefix of names."""


# Read by the authorizer, see `authorizer.py`. In Kafka too they are not in the table.
_AUTHORIZER_CONFIGS: Final = ("allow.everyone.if.no.acl.found", "super.users")


def _warning(name: str) -> str | None:
    if name in _AUTHORIZER_CONFIGS:
        return None
    prefixed = split_name(name)
    key = BROKER_CONFIGS.get(name if prefixed is None else prefixed.base)
    if key is not None and key.has_effect:
        return None
    if key is not None or any(
        name == known or (known[-1] == "." and name.startswith(known)) for known in _WITHOUT_EFFECT
    ):
        return f"{name} has no effect in kbroker"
    import difflib  # Imported only for unknown names: it would slow down every start.

    nearest = difflib.get_close_matches(name, [*BROKER_CONFIGS, *_ALIASES], n=1)
    return f"{name} is not a known config" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _listener_warnings(config: BrokerConfig) -> list[str]:
    names = {endpoint.name for endpoint in config.endpoints}
    warnings = [
        f"{name} has no effect: listeners has no listener {prefixed.listener.upper()}"
        for name in config.texts
        if (prefixed := split_name(name)) is not None and prefixed.listener.upper() not in names
    ]
    if config.ssl_client_auth != "none":
        warnings += [
            f"ssl.client.auth has no effect on listener {endpoint.name}, which uses SASL_SSL: set "
            f"listener.name.{endpoint.name.lower()}.ssl.client.auth"
            for endpoint in config.endpoints
            if endpoint.security_protocol == "SASL_SSL"
            and f"listener.name.{endpoint.name.lower()}.ssl.client.auth" not in config.texts
        ]
    return [*warnings, *_jaas_warnings(config), *_zookeeper_warnings(config)]


def _jaas_warnings(config: BrokerConfig) -> list[str]:
    """Returns a warning for each JAAS config that a broker ignores, as in Kafka: it may have been meant for a login."""
    return [
        f"{name} has no effect: a JAAS config needs the prefix of its listener and its mechanism, "
        "listener.name.<listener>.<mechanism>.sasl.jaas.config"
        for name in config.texts
        if name == "sasl.jaas.config"
        or ((prefixed := split_name(name)) is not None and prefixed[1:] == (None, "sasl.jaas.config"))
    ]


def _zookeeper_warnings(config: BrokerConfig) -> list[str]:
    """Returns a warning for each config of TLS to ZooKeeper that is set although TLS is off: it may have been meant."""
    return [
        f"{name} has no effect: zookeeper.ssl.client.enable is not true"
        for name in config.texts
        if name.startswith("zookeeper.ssl.")
        and not config.zookeeper_ssl_client_enable
        and name != "zookeeper.ssl.client.enable"
    ]


def _inherited(key: ConfigKey[Any], defaults: BrokerConfig, given: Mapping[str, str]) -> object:
    """Returns a topic config's value without an override: the first broker config that is set, else the default."""
    for name, factor in key.fallbacks:
        if name in given:
            value = defaults.value_of(name)
            # A negative time means "no limit" in every unit.
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
    """Returns the error message for a dynamic update of one broker (`is_per_broker`) or of all, or None if it is valid.

    Unknown names are accepted, as in Kafka: they may belong to a plugin.
    """
    known = {name: BROKER_CONFIGS[name] for name in texts if name in BROKER_CONFIGS}
    if "node.id" in texts or any(key.update is UpdateMode.READ_ONLY for key in known.values()):
        names = [name for name in texts if name == "node.id" or (name in known and name not in _DYNAMIC_CONFIGS)]
        return f"Cannot update these configs dynamically: {', '.join(names)}"
    if names := [name for name in known if name in _FIXED_WHILE_RUNNING]:
        return f"{', '.join(names)} cannot be updated dynamically: change the properties of the broker and restart it"
    if names := [name for name, key in known.items() if key.update is UpdateMode.PER_BROKER]:
        return (
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"{', '.join(names)}"
        )
    if (problem := _listener_problem(texts)) is not None:
        return problem
    for name, text in texts.items():
        key = known.get(name) or (THROTTLED_RATE if name in ONLY_DYNAMIC else None)
        try:
            if key is not None:
                key.parse(text)
        except InvalidValue as invalid:
            return invalid.for_client()
    if not is_per_broker and (names := [name for name in texts if name.startswith("listener.name.")]):
        return f"Cannot update these configs at default cluster level, a broker id is needed: {', '.join(names)}"
    return None


def _listener_problem(texts: Mapping[str, str]) -> str | None:
    """Returns the error message for a dynamic update of configs with the prefix of a listener, or None."""
    for name, text in texts.items():
        prefixed = split_name(name)
        key = None if prefixed is None else BROKER_CONFIGS.get(prefixed.base)
        if prefixed is None or key is None:
            continue
        if prefixed.base in SECURITY_CONFIGS and prefixed.base not in RELOADABLE:
            return (
                "Configs cannot be updated dynamically for existing listener "
                f"{prefixed.listener.upper()}, restart broker or create a new listener for update"
            )
        try:
            key.parse(text)
        except InvalidValue as invalid:
            return invalid.for_client(name.removesuffix(key.name))
    return None
