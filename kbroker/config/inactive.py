"""Broker configs of Kafka 4.1 that have no effect in kbroker: threads, KRaft, tiered storage, Java classes, and others.

They are validated, stored and shown, so that tools and properties files written for Kafka work. A config that gets an
effect moves to the table in `broker.py`. `tls.py` and `sasl.py` have the configs of listeners.
"""

from __future__ import annotations

from kbroker.config.key import (
    CLUSTER_WIDE,
    DAY_MS,
    MAX_INT,
    MAX_LONG,
    MB,
    ConfigTable,
    at_least,
    between,
    class_name,
    flag,
    int16,
    int32,
    int64,
    keys_of,
    optional_int32,
    optional_string,
    some_of,
    string,
    strings,
)

__all__ = ["InactiveBrokerConfig"]

_TOPIC_BASED = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


class InactiveBrokerConfig(ConfigTable):
    """Broker configs without effect."""

    add_partitions_to_txn_retry_backoff_max_ms = int32(
        100, at_least(0), "Maximum time to wait before the broker retries to add a partition to a transaction."
    )
    add_partitions_to_txn_retry_backoff_ms = int32(
        20, at_least(1), "Initial time to wait before the broker retries to add a partition to a transaction."
    )
    alter_config_policy_class_name = class_name(None, "Java class that validates config changes.")
    alter_log_dirs_replication_quota_window_num = int32(
        11, at_least(1), "Number of samples kept in memory for the quota of replica moves between data directories."
    )
    alter_log_dirs_replication_quota_window_size_seconds = int32(
        1, at_least(1), "Time span of each sample for the quota of replica moves between data directories."
    )
    background_threads = int32(10, at_least(1), "Number of threads for background tasks.", update=CLUSTER_WIDE)
    broker_heartbeat_interval_ms = int32(2000, None, "Interval between heartbeats of a KRaft broker to its controller.")
    broker_session_timeout_ms = int32(
        9000, None, "Timeout after which a KRaft controller fences a broker that sends no heartbeat."
    )
    client_quota_callback_class = class_name(None, "Java class that computes client quotas.")
    controller_quorum_append_linger_ms = int32(
        25, at_least(0), "Time that the KRaft leader collects writes before it flushes them to disk."
    )
    controller_quorum_bootstrap_servers = strings((), None, "Addresses used to find the KRaft quorum.")
    controller_quorum_election_backoff_max_ms = int32(
        1000, at_least(0), "Maximum time to wait before a KRaft candidate starts a new election."
    )
    controller_quorum_election_timeout_ms = int32(
        1000, at_least(0), "Time that a KRaft candidate waits for votes before it starts a new election."
    )
    controller_quorum_fetch_timeout_ms = int32(
        2000,
        at_least(0),
        "Time without a successful fetch from the leader after which a KRaft voter starts an election.",
    )
    controller_quorum_request_timeout_ms = int32(2000, at_least(0), "Timeout of requests in the KRaft quorum.")
    controller_quorum_retry_backoff_ms = int32(
        20, at_least(0), "Time to wait before a failed request in the KRaft quorum is retried."
    )
    controller_quorum_voters = strings((), None, "Voters of the KRaft quorum, as ID@HOST:PORT.")
    controller_socket_timeout_ms = int32(30_000, None, "Socket timeout of connections from the controller to brokers.")
    create_topic_policy_class_name = class_name(None, "Java class that validates new topics.")
    delete_records_purgatory_purge_interval_requests = int32(
        1, None, "Purge interval of the DeleteRecords purgatory, in requests."
    )
    early_start_listeners = optional_string("Listeners that can be opened before the authorizer has started.")
    fetch_purgatory_purge_interval_requests = int32(1000, None, "Purge interval of the fetch purgatory, in requests.")
    group_consumer_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Maximum heartbeat interval that can be configured for a consumer group."
    )
    group_consumer_max_session_timeout_ms = int32(
        60_000, at_least(1), "Maximum session timeout that can be configured for a consumer group."
    )
    group_consumer_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Minimum heartbeat interval that can be configured for a consumer group."
    )
    group_consumer_min_session_timeout_ms = int32(
        45_000, at_least(1), "Minimum session timeout that can be configured for a consumer group."
    )
    group_coordinator_append_linger_ms = int32(
        5, at_least(0), "Time that the group coordinator collects records before it writes them."
    )
    group_coordinator_threads = int32(4, at_least(1), "Number of threads of the group coordinator.")
    group_share_assignors = strings(
        ("simple",), None, "Server-side assignors for share groups. The first one is the default."
    )
    group_share_delivery_count_limit = int32(
        5, between(2, 10), "Maximum number of delivery attempts for a record of a share group."
    )
    group_share_heartbeat_interval_ms = int32(
        5000, at_least(1), "Heartbeat interval given to the members of a share group."
    )
    group_share_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Maximum heartbeat interval that can be configured for a share group."
    )
    group_share_max_record_lock_duration_ms = int32(
        60_000, between(30_000, 3_600_000), "Maximum record lock duration that can be configured for a share group."
    )
    group_share_max_session_timeout_ms = int32(
        60_000, at_least(1), "Maximum session timeout that can be configured for a share group."
    )
    group_share_max_share_sessions = int32(2000, at_least(1), "Maximum number of share sessions of a broker.")
    group_share_max_size = int32(200, between(1, 1000), "Maximum number of members in a share group.")
    group_share_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Minimum heartbeat interval that can be configured for a share group."
    )
    group_share_min_record_lock_duration_ms = int32(
        15_000, between(1000, 30_000), "Minimum record lock duration that can be configured for a share group."
    )
    group_share_min_session_timeout_ms = int32(
        45_000, at_least(1), "Minimum session timeout that can be configured for a share group."
    )
    group_share_partition_max_record_locks = int32(
        2000, between(100, 10_000), "Maximum number of records of a partition that a share group can hold locked."
    )
    group_share_record_lock_duration_ms = int32(
        30_000, between(1000, 3_600_000), "Time that a fetched record is locked for its member."
    )
    group_share_session_timeout_ms = int32(45_000, at_least(1), "Timeout to detect failed members of a share group.")
    group_streams_heartbeat_interval_ms = int32(
        5000, at_least(1), "Heartbeat interval given to the members of a streams group."
    )
    group_streams_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Maximum heartbeat interval that can be configured for a streams group."
    )
    group_streams_max_session_timeout_ms = int32(
        60_000, at_least(1), "Maximum session timeout that can be configured for a streams group."
    )
    group_streams_max_size = int32(MAX_INT, at_least(1), "Maximum number of members in a streams group.")
    group_streams_max_standby_replicas = int32(
        2, at_least(0), "Maximum number of standby replicas that can be configured for a streams group."
    )
    group_streams_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Minimum heartbeat interval that can be configured for a streams group."
    )
    group_streams_min_session_timeout_ms = int32(
        45_000, at_least(1), "Minimum session timeout that can be configured for a streams group."
    )
    group_streams_num_standby_replicas = int32(
        0, at_least(0), "Number of standby replicas for each task of a streams group."
    )
    group_streams_session_timeout_ms = int32(
        45_000, at_least(1), "Timeout to detect failed members of a streams group."
    )
    initial_broker_registration_timeout_ms = int32(
        60_000, None, "Time that a KRaft broker tries to register with the controller before it exits."
    )
    kafka_metrics_polling_interval_secs = int32(
        10, at_least(1), "Polling interval of the reporters in kafka.metrics.reporters."
    )
    kafka_metrics_reporters = strings((), None, "Java classes that report Yammer metrics.")
    log_dir_failure_timeout_ms = int64(
        30_000,
        at_least(1),
        "Time after which a broker exits if it cannot report a failed data directory to the controller.",
    )
    metadata_log_dir = optional_string(
        "Directory of the KRaft metadata log. If not set, the first data directory is used."
    )
    metadata_log_max_record_bytes_between_snapshots = int64(
        20 * MB, at_least(1), "Number of bytes of metadata records after which a new snapshot is created."
    )
    metadata_log_max_snapshot_interval_ms = int64(
        3_600_000, at_least(0), "Maximum time between two snapshots of the metadata."
    )
    metadata_log_segment_bytes = int32(
        1024 * MB, at_least(8 * MB), "Maximum size of a segment of the KRaft metadata log."
    )
    metadata_log_segment_ms = int64(7 * DAY_MS, None, "Time after which a segment of the KRaft metadata log is closed.")
    metadata_max_idle_interval_ms = int32(
        500, at_least(0), "Interval at which the active KRaft controller writes a no-op record."
    )
    metadata_max_retention_bytes = int64(
        100 * MB, None, "Maximum total size of the metadata log and its snapshots before old ones are deleted."
    )
    metadata_max_retention_ms = int64(
        7 * DAY_MS, None, "Maximum time that metadata log segments and snapshots are kept before they are deleted."
    )
    metric_reporters = strings(
        ("org.apache.kafka.common.metrics.JmxReporter",),
        None,
        "Java classes that report metrics.",
        update=CLUSTER_WIDE,
    )
    metrics_num_samples = int32(2, at_least(1), "Number of samples used to compute metrics.")
    metrics_recording_level = string("INFO", None, "Highest recording level of metrics.")
    metrics_sample_window_ms = int64(30_000, at_least(1), "Time span of each metrics sample.")
    num_io_threads = int32(8, at_least(1), "Number of threads that process requests.", update=CLUSTER_WIDE)
    num_network_threads = int32(
        3,
        at_least(1),
        "Number of threads that read requests from and write responses to the network.",
        update=CLUSTER_WIDE,
    )
    num_recovery_threads_per_data_dir = int32(
        2,
        at_least(1),
        "Number of threads for each data directory that recover logs at startup and flush them at shutdown.",
        update=CLUSTER_WIDE,
    )
    num_replica_alter_log_dirs_threads = optional_int32(
        None, "Number of threads that move replicas between data directories."
    )
    num_replica_fetchers = int32(1, None, "Number of fetcher threads for each source broker.", update=CLUSTER_WIDE)
    offsets_commit_timeout_ms = int32(5000, at_least(1), "Timeout of the replication of an offset commit.")
    offsets_load_buffer_size = int32(
        5 * MB, at_least(1), "Batch size for reading __consumer_offsets when its partitions are loaded."
    )
    offsets_topic_compression_codec = int32(0, None, "Compression codec of __consumer_offsets.")
    process_roles = strings((), some_of("broker", "controller"), "Roles of a KRaft node: broker, controller, or both.")
    producer_purgatory_purge_interval_requests = int32(
        1000, None, "Purge interval of the produce purgatory, in requests."
    )
    queued_max_requests = int32(
        500, at_least(1), "Maximum number of queued requests before the network threads are blocked."
    )
    remote_fetch_max_wait_ms = int32(
        500, at_least(1), "Maximum time that a fetch waits for data from tiered storage.", update=CLUSTER_WIDE
    )
    remote_list_offsets_request_timeout_ms = int64(
        30_000, at_least(1), "Maximum time that a ListOffsets request waits for tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_index_file_cache_total_size_bytes = int64(
        1024 * MB, at_least(1), "Disk space for index files fetched from tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_copier_thread_pool_size = int32(
        10, at_least(1), "Number of threads that copy segments to tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_copy_max_bytes_per_second = int64(
        MAX_LONG,
        at_least(1),
        "Maximum rate of copies from this broker to tiered storage, in bytes per second.",
        update=CLUSTER_WIDE,
    )
    remote_log_manager_copy_quota_window_num = int32(
        11, at_least(1), "Number of samples kept in memory for the copy quota of tiered storage."
    )
    remote_log_manager_copy_quota_window_size_seconds = int32(
        1, at_least(1), "Time span of each sample for the copy quota of tiered storage."
    )
    remote_log_manager_expiration_thread_pool_size = int32(
        10, at_least(1), "Number of threads that delete expired segments from tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_fetch_max_bytes_per_second = int64(
        MAX_LONG,
        at_least(1),
        "Maximum rate of fetches from tiered storage to this broker, in bytes per second.",
        update=CLUSTER_WIDE,
    )
    remote_log_manager_fetch_quota_window_num = int32(
        11, at_least(1), "Number of samples kept in memory for the fetch quota of tiered storage."
    )
    remote_log_manager_fetch_quota_window_size_seconds = int32(
        1, at_least(1), "Time span of each sample for the fetch quota of tiered storage."
    )
    remote_log_manager_task_interval_ms = int64(
        30_000, at_least(1), "Interval at which tiered storage copies and expires segments."
    )
    remote_log_manager_thread_pool_size = int32(
        2, at_least(1), "Number of threads that tiered storage uses for followers."
    )
    remote_log_metadata_custom_metadata_max_bytes = int32(
        128, at_least(0), "Maximum size of the custom metadata that a tiered storage plugin can store for a segment."
    )
    remote_log_metadata_manager_class_name = string(
        _TOPIC_BASED, None, "Java class that manages the metadata of tiered storage."
    )
    remote_log_metadata_manager_class_path = optional_string("Class path of remote.log.metadata.manager.class.name.")
    remote_log_metadata_manager_impl_prefix = string(
        "rlmm.config.", None, "Prefix of the configs of remote.log.metadata.manager.class.name."
    )
    remote_log_metadata_manager_listener_name = optional_string(
        "Listener that remote.log.metadata.manager.class.name uses to connect to brokers."
    )
    remote_log_reader_max_pending_tasks = int32(100, at_least(1), "Maximum number of queued reads from tiered storage.")
    remote_log_reader_threads = int32(
        10, at_least(1), "Number of threads that read from tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_storage_manager_class_name = optional_string("Java class that stores the segments of tiered storage.")
    remote_log_storage_manager_class_path = optional_string("Class path of remote.log.storage.manager.class.name.")
    remote_log_storage_manager_impl_prefix = string(
        "rsm.config.", None, "Prefix of the configs of remote.log.storage.manager.class.name."
    )
    remote_log_storage_system_enable = flag(False, "Whether tiered storage is enabled on the broker.")
    replica_high_watermark_checkpoint_interval_ms = int64(
        5000, None, "Interval at which high watermarks are written to disk."
    )
    replica_socket_receive_buffer_bytes = int32(64 * 1024, None, "Receive buffer of the sockets of fetches to leaders.")
    security_providers = optional_string("Java classes that provide security algorithms.")
    share_coordinator_append_linger_ms = int32(
        5, at_least(0), "Time that the share coordinator collects records before it writes them."
    )
    share_coordinator_load_buffer_size = int32(
        5 * MB, at_least(1), "Batch size for reading __share_group_state when its partitions are loaded."
    )
    share_coordinator_snapshot_update_records_per_snapshot = int32(
        500, at_least(0), "Number of update records between two snapshots of share state."
    )
    share_coordinator_state_topic_compression_codec = int32(0, None, "Compression codec of __share_group_state.")
    share_coordinator_state_topic_min_isr = int16(2, at_least(1), "min.insync.replicas of __share_group_state.")
    share_coordinator_state_topic_num_partitions = int32(
        50, at_least(1), "Number of partitions of __share_group_state."
    )
    share_coordinator_state_topic_replication_factor = int16(
        3, at_least(1), "Replication factor of __share_group_state."
    )
    share_coordinator_state_topic_segment_bytes = int32(100 * MB, at_least(1), "Segment size of __share_group_state.")
    share_coordinator_threads = int32(1, at_least(1), "Number of threads of the share coordinator.")
    share_coordinator_write_timeout_ms = int32(5000, at_least(1), "Timeout of writes of the share coordinator.")
    share_fetch_purgatory_purge_interval_requests = int32(
        1000, None, "Purge interval of the share fetch purgatory, in requests."
    )
    socket_connection_setup_timeout_max_ms = int64(
        30_000, None, "Maximum time to wait for a socket connection to be established."
    )
    socket_connection_setup_timeout_ms = int64(
        10_000, None, "Initial time to wait for a socket connection to be established."
    )
    telemetry_max_bytes = int32(
        MB, at_least(1), "Maximum size of the metrics that a client pushes, before compression."
    )
    transaction_state_log_load_buffer_size = int32(
        5 * MB, at_least(1), "Batch size for reading __transaction_state when its partitions are loaded."
    )
    transaction_two_phase_commit_enable = flag(
        False, "Whether producers can participate in external two-phase commits."
    )


for _key in keys_of(InactiveBrokerConfig):
    _key.has_effect = False
