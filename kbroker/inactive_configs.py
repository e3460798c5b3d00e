"""Broker configs of Kafka 4.1 by which nothing here changes: of threads, KRaft, tiered storage, Java, and so on.

They are known, checked, shown and kept, so that a tool or a properties file finds every name that it knows. A config
that comes to act moves to the table in `config.py`.
"""

from __future__ import annotations

from typing import Final

from kbroker.config_key import (
    DAY_MS,
    MAX_INT,
    MAX_LONG,
    MB,
    Check,
    ConfigTable,
    UpdateMode,
    at_least,
    between,
    class_name,
    double,
    flag,
    int16,
    int32,
    int64,
    keys_of,
    one_of,
    optional_int32,
    optional_string,
    password,
    some_of,
    string,
    strings,
)

__all__ = ["InactiveBrokerConfig"]

CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE
PER_BROKER: Final = UpdateMode.PER_BROKER

_SECURITY = "org.apache.kafka.common.security"
_TOPIC_BASED = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"


def _one_of_any_case(*choices: str) -> Check:
    problem = f"must be one of {', '.join(choices)}"
    return lambda value: None if value.upper() in choices else problem


class InactiveBrokerConfig(ConfigTable):
    """None of these acts."""

    add_partitions_to_txn_retry_backoff_max_ms = int32(
        100, at_least(0), "Longest wait before a partition is offered to a transaction again on the server's side."
    )
    add_partitions_to_txn_retry_backoff_ms = int32(
        20, at_least(1), "First wait before a partition is offered to a transaction again on the server's side."
    )
    alter_config_policy_class_name = class_name(None, "Java class that may refuse changes of configs.")
    alter_log_dirs_replication_quota_window_num = int32(
        11, at_least(1), "Samples kept for the quota of moves between data directories."
    )
    alter_log_dirs_replication_quota_window_size_seconds = int32(
        1, at_least(1), "Length of a sample for the quota of moves between data directories."
    )
    authorizer_class_name = string("", None, "Java class that decides who may do what; empty: everybody may do all.")
    background_threads = int32(10, at_least(1), "Threads for work in the background.", update=CLUSTER_WIDE)
    broker_heartbeat_interval_ms = int32(2000, None, "How often a KRaft broker reports to its controller.")
    broker_session_timeout_ms = int32(9000, None, "Silence after which a KRaft controller gives a broker up.")
    client_quota_callback_class = class_name(None, "Java class that computes the quotas of clients.")
    connection_failed_authentication_delay_ms = int32(
        100, at_least(0), "How long a connection that failed to authenticate is kept before it is closed."
    )
    connections_max_reauth_ms = int64(
        0, None, "Time after which a SASL client must authenticate again; 0: the first time is enough."
    )
    controller_quorum_append_linger_ms = int32(
        25, at_least(0), "How long the KRaft leader gathers writes before it flushes them."
    )
    controller_quorum_bootstrap_servers = strings((), None, "Addresses at which the KRaft quorum is first looked for.")
    controller_quorum_election_backoff_max_ms = int32(
        1000, at_least(0), "Longest wait before a KRaft candidate stands again."
    )
    controller_quorum_election_timeout_ms = int32(
        1000, at_least(0), "How long a KRaft candidate waits for votes before a new election."
    )
    controller_quorum_fetch_timeout_ms = int32(
        2000, at_least(0), "Time without a successful fetch after which a KRaft voter doubts the leader."
    )
    controller_quorum_request_timeout_ms = int32(
        2000, at_least(0), "How long a request inside the KRaft quorum may take."
    )
    controller_quorum_retry_backoff_ms = int32(20, at_least(0), "Wait before such a request is sent again.")
    controller_quorum_voters = strings((), None, "The KRaft voters, as ID@HOST:PORT.")
    controller_socket_timeout_ms = int32(30_000, None, "Timeout of connections from controllers to brokers.")
    create_topic_policy_class_name = class_name(None, "Java class that may refuse new topics.")
    delegation_token_expiry_check_interval_ms = int64(
        3_600_000, at_least(1), "How often expired delegation tokens are looked for."
    )
    delegation_token_expiry_time_ms = int64(DAY_MS, at_least(1), "Life of a delegation token unless it is renewed.")
    delegation_token_max_lifetime_ms = int64(7 * DAY_MS, at_least(1), "Life of a delegation token, renewals included.")
    delegation_token_secret_key = password("Secret with which delegation tokens are made and checked.")
    delete_records_purgatory_purge_interval_requests = int32(
        1, None, "Finished DeleteRecords requests after which their waiting room is swept."
    )
    early_start_listeners = optional_string("Listeners that may serve before the rest of the broker is ready.")
    fetch_purgatory_purge_interval_requests = int32(
        1000, None, "Finished fetches after which their waiting room is swept."
    )
    group_consumer_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Largest heartbeat interval that a consumer group may be given."
    )
    group_consumer_max_session_timeout_ms = int32(
        60_000, at_least(1), "Largest session timeout that a consumer group may be given."
    )
    group_consumer_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Smallest heartbeat interval that a consumer group may be given."
    )
    group_consumer_min_session_timeout_ms = int32(
        45_000, at_least(1), "Smallest session timeout that a consumer group may be given."
    )
    group_coordinator_append_linger_ms = int32(
        5, at_least(0), "How long the group coordinator gathers records before it writes them."
    )
    group_coordinator_threads = int32(4, at_least(1), "Threads of the group coordinator.")
    group_share_assignors = strings(("simple",), None, "Assignors for share groups; the first is the default.")
    group_share_delivery_count_limit = int32(
        5, between(2, 10), "How many times a record is delivered to a share group before it is given up."
    )
    group_share_heartbeat_interval_ms = int32(
        5000, at_least(1), "How often members of a share group are told to send a heartbeat."
    )
    group_share_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Largest heartbeat interval that a share group may be given."
    )
    group_share_max_record_lock_duration_ms = int32(
        60_000, between(30_000, 3_600_000), "Longest lock on a record that a share group may be given."
    )
    group_share_max_session_timeout_ms = int32(
        60_000, at_least(1), "Largest session timeout that a share group may be given."
    )
    group_share_max_share_sessions = int32(2000, at_least(1), "Most share sessions of a broker.")
    group_share_max_size = int32(200, between(1, 1000), "Most members of a share group.")
    group_share_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Smallest heartbeat interval that a share group may be given."
    )
    group_share_min_record_lock_duration_ms = int32(
        15_000, between(1000, 30_000), "Shortest lock on a record that a share group may be given."
    )
    group_share_min_session_timeout_ms = int32(
        45_000, at_least(1), "Smallest session timeout that a share group may be given."
    )
    group_share_partition_max_record_locks = int32(
        2000, between(100, 10_000), "Most records of a partition that share groups hold locked."
    )
    group_share_record_lock_duration_ms = int32(
        30_000, between(1000, 3_600_000), "How long a record stays locked for the member that fetched it."
    )
    group_share_session_timeout_ms = int32(
        45_000, at_least(1), "Silence after which a member of a share group is taken for dead."
    )
    group_streams_heartbeat_interval_ms = int32(
        5000, at_least(1), "How often members of a streams group are told to send a heartbeat."
    )
    group_streams_max_heartbeat_interval_ms = int32(
        15_000, at_least(1), "Largest heartbeat interval that a streams group may be given."
    )
    group_streams_max_session_timeout_ms = int32(
        60_000, at_least(1), "Largest session timeout that a streams group may be given."
    )
    group_streams_max_size = int32(MAX_INT, at_least(1), "Most members of a streams group.")
    group_streams_max_standby_replicas = int32(
        2, at_least(0), "Most standby replicas that a streams group may be given."
    )
    group_streams_min_heartbeat_interval_ms = int32(
        5000, at_least(1), "Smallest heartbeat interval that a streams group may be given."
    )
    group_streams_min_session_timeout_ms = int32(
        45_000, at_least(1), "Smallest session timeout that a streams group may be given."
    )
    group_streams_num_standby_replicas = int32(0, at_least(0), "Standby replicas of each task of a streams group.")
    group_streams_session_timeout_ms = int32(
        45_000, at_least(1), "Silence after which a member of a streams group is taken for dead."
    )
    initial_broker_registration_timeout_ms = int32(
        60_000, None, "How long a KRaft broker tries to register before it gives up."
    )
    kafka_metrics_polling_interval_secs = int32(10, at_least(1), "How often the older metrics reporters look.")
    kafka_metrics_reporters = strings((), None, "Java classes that report the older metrics.")
    log_cleaner_threads = int32(1, at_least(0), "Threads that compact.", update=CLUSTER_WIDE)
    log_dir_failure_timeout_ms = int64(
        30_000, at_least(1), "How long a broker may fail to report a broken data directory before it stops."
    )
    metadata_log_dir = optional_string("Directory of the KRaft metadata log; unset: the first data directory.")
    metadata_log_max_record_bytes_between_snapshots = int64(
        20 * MB, at_least(1), "Bytes of metadata records after which a new snapshot is written."
    )
    metadata_log_max_snapshot_interval_ms = int64(
        3_600_000, at_least(0), "Time after which a new metadata snapshot is written."
    )
    metadata_log_segment_bytes = int32(1024 * MB, at_least(8 * MB), "Segment size of the KRaft metadata log.")
    metadata_log_segment_ms = int64(7 * DAY_MS, None, "Age at which a segment of the KRaft metadata log is closed.")
    metadata_max_idle_interval_ms = int32(
        500, at_least(0), "How often an idle KRaft controller writes a record that says nothing."
    )
    metadata_max_retention_bytes = int64(100 * MB, None, "Size of metadata log and snapshots above which old ones go.")
    metadata_max_retention_ms = int64(7 * DAY_MS, None, "Age of metadata log and snapshots above which old ones go.")
    metric_reporters = strings(
        ("org.apache.kafka.common.metrics.JmxReporter",),
        None,
        "Java classes that report metrics.",
        update=CLUSTER_WIDE,
    )
    metrics_num_samples = int32(2, at_least(1), "Samples from which a metric is computed.")
    metrics_recording_level = string("INFO", None, "How fine the recorded metrics are.")
    metrics_sample_window_ms = int64(30_000, at_least(1), "Length of a metric's sample.")
    num_io_threads = int32(8, at_least(1), "Threads that handle requests.", update=CLUSTER_WIDE)
    num_network_threads = int32(3, at_least(1), "Threads that read and write sockets.", update=CLUSTER_WIDE)
    num_recovery_threads_per_data_dir = int32(
        2, at_least(1), "Threads for each data directory that recover and flush logs.", update=CLUSTER_WIDE
    )
    num_replica_alter_log_dirs_threads = optional_int32(None, "Threads that move replicas between data directories.")
    num_replica_fetchers = int32(1, None, "Threads that fetch from each other broker.", update=CLUSTER_WIDE)
    offsets_commit_timeout_ms = int32(5000, at_least(1), "How long a commit of offsets may wait for its replicas.")
    offsets_load_buffer_size = int32(5 * MB, at_least(1), "Batch size with which committed offsets are loaded.")
    offsets_topic_compression_codec = int32(0, None, "Codec of the topic that holds committed offsets.")
    principal_builder_class = class_name(
        f"{_SECURITY}.authenticator.DefaultKafkaPrincipalBuilder",
        "Java class that makes a principal of what a connection has proved.",
        update=PER_BROKER,
    )
    process_roles = strings((), some_of("broker", "controller"), "What a KRaft node is: broker, controller, or both.")
    producer_purgatory_purge_interval_requests = int32(
        1000, None, "Finished produce requests after which their waiting room is swept."
    )
    queued_max_requests = int32(500, at_least(1), "Requests that may wait for a thread before sockets are left unread.")
    remote_fetch_max_wait_ms = int32(
        500, at_least(1), "How long a fetch waits for tiered storage.", update=CLUSTER_WIDE
    )
    remote_list_offsets_request_timeout_ms = int64(
        30_000, at_least(1), "How long a look-up of offsets in tiered storage may take.", update=CLUSTER_WIDE
    )
    remote_log_index_file_cache_total_size_bytes = int64(
        1024 * MB, at_least(1), "Disk space for indexes fetched from tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_copier_thread_pool_size = int32(
        10, at_least(1), "Threads that copy segments to tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_copy_max_bytes_per_second = int64(
        MAX_LONG, at_least(1), "Most bytes a second from this broker to tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_copy_quota_window_num = int32(11, at_least(1), "Samples kept for the copy quota.")
    remote_log_manager_copy_quota_window_size_seconds = int32(1, at_least(1), "Length of a sample of the copy quota.")
    remote_log_manager_expiration_thread_pool_size = int32(
        10, at_least(1), "Threads that delete what expired in tiered storage.", update=CLUSTER_WIDE
    )
    remote_log_manager_fetch_max_bytes_per_second = int64(
        MAX_LONG, at_least(1), "Most bytes a second from tiered storage to this broker.", update=CLUSTER_WIDE
    )
    remote_log_manager_fetch_quota_window_num = int32(11, at_least(1), "Samples kept for the fetch quota.")
    remote_log_manager_fetch_quota_window_size_seconds = int32(1, at_least(1), "Length of a sample of the fetch quota.")
    remote_log_manager_task_interval_ms = int64(30_000, at_least(1), "How often tiered storage looks for work.")
    remote_log_manager_thread_pool_size = int32(2, at_least(1), "Threads of tiered storage for followers.")
    remote_log_metadata_custom_metadata_max_bytes = int32(
        128, at_least(0), "Largest note that a plugin of tiered storage may keep for a segment."
    )
    remote_log_metadata_manager_class_name = string(
        _TOPIC_BASED, None, "Java class that keeps the metadata of tiered storage."
    )
    remote_log_metadata_manager_class_path = optional_string("Where that class is loaded from.")
    remote_log_metadata_manager_impl_prefix = string(
        "rlmm.config.", None, "What the names of its own configs begin with."
    )
    remote_log_metadata_manager_listener_name = optional_string("The listener through which it reaches the cluster.")
    remote_log_reader_max_pending_tasks = int32(100, at_least(1), "Reads of tiered storage that may wait for a thread.")
    remote_log_reader_threads = int32(10, at_least(1), "Threads that read tiered storage.", update=CLUSTER_WIDE)
    remote_log_storage_manager_class_name = optional_string("Java class that keeps the segments of tiered storage.")
    remote_log_storage_manager_class_path = optional_string("Where that class is loaded from.")
    remote_log_storage_manager_impl_prefix = string(
        "rsm.config.", None, "What the names of its own configs begin with."
    )
    remote_log_storage_system_enable = flag(False, "Whether the broker has tiered storage at all.")
    replica_high_watermark_checkpoint_interval_ms = int64(5000, None, "How often high watermarks are written down.")
    replica_selector_class = optional_string("Java class that chooses the replica that a consumer reads from.")
    replica_socket_receive_buffer_bytes = int32(64 * 1024, None, "Receive buffer of connections to leaders.")
    replication_quota_window_num = int32(11, at_least(1), "Samples kept for the quota of replication.")
    replication_quota_window_size_seconds = int32(1, at_least(1), "Length of a sample for the quota of replication.")
    request_timeout_ms = int32(30_000, None, "How long this broker waits for the answer to a request of its own.")
    sasl_client_callback_handler_class = class_name(None, "Java class that answers a SASL client's questions.")
    sasl_enabled_mechanisms = strings(("GSSAPI",), None, "SASL mechanisms that are offered.", update=PER_BROKER)
    sasl_jaas_config = password("Login context of SASL, in the form of a JAAS file.", update=PER_BROKER)
    sasl_kerberos_kinit_cmd = string("/usr/bin/kinit", None, "Path of kinit.", update=PER_BROKER)
    sasl_kerberos_min_time_before_relogin = int64(
        60_000, None, "Shortest time between two Kerberos logins.", update=PER_BROKER
    )
    sasl_kerberos_principal_to_local_rules = strings(
        ("DEFAULT",), None, "Rules that shorten Kerberos principals to names.", update=PER_BROKER
    )
    sasl_kerberos_service_name = optional_string("Kerberos name of the service.", update=PER_BROKER)
    sasl_kerberos_ticket_renew_jitter = double(
        0.05, None, "Random share added to the time of renewing a ticket.", update=PER_BROKER
    )
    sasl_kerberos_ticket_renew_window_factor = double(
        0.8, None, "Share of a ticket's life after which it is renewed.", update=PER_BROKER
    )
    sasl_login_callback_handler_class = class_name(None, "Java class that answers a SASL login's questions.")
    sasl_login_class = class_name(None, "Java class that logs in.")
    sasl_login_connect_timeout_ms = optional_int32(None, "How long connecting to the identity provider may take.")
    sasl_login_read_timeout_ms = optional_int32(None, "How long its answer may take.")
    sasl_login_refresh_buffer_seconds = int16(
        300, None, "Time before its end that a credential is renewed at the latest.", update=PER_BROKER
    )
    sasl_login_refresh_min_period_seconds = int16(
        60, None, "Shortest time between two renewals of a credential.", update=PER_BROKER
    )
    sasl_login_refresh_window_factor = double(
        0.8, None, "Share of a credential's life after which it is renewed.", update=PER_BROKER
    )
    sasl_login_refresh_window_jitter = double(0.05, None, "Random share added to that time.", update=PER_BROKER)
    sasl_login_retry_backoff_max_ms = int64(10_000, None, "Longest wait between two tries to log in.")
    sasl_login_retry_backoff_ms = int64(100, None, "First wait between two tries to log in.")
    sasl_mechanism_controller_protocol = string("GSSAPI", None, "SASL mechanism between brokers and controllers.")
    sasl_mechanism_inter_broker_protocol = string("GSSAPI", None, "SASL mechanism between brokers.", update=PER_BROKER)
    sasl_oauthbearer_assertion_algorithm = string(
        "RS256", _one_of_any_case("ES256", "RS256"), "How an OAuth assertion is signed."
    )
    sasl_oauthbearer_assertion_claim_aud = optional_string("Audience that an OAuth assertion names.")
    sasl_oauthbearer_assertion_claim_exp_seconds = int32(300, between(0, DAY_MS // 1000), "Life of an OAuth assertion.")
    sasl_oauthbearer_assertion_claim_iss = optional_string("Issuer that an OAuth assertion names.")
    sasl_oauthbearer_assertion_claim_jti_include = flag(False, "Whether an OAuth assertion carries an id of its own.")
    sasl_oauthbearer_assertion_claim_nbf_seconds = int32(
        60, between(0, 3600), "How far back the begin of an OAuth assertion's life is set."
    )
    sasl_oauthbearer_assertion_claim_sub = optional_string("Subject that an OAuth assertion names.")
    sasl_oauthbearer_assertion_file = optional_string("File with an OAuth assertion made elsewhere.")
    sasl_oauthbearer_assertion_private_key_file = optional_string("File with the key that signs OAuth assertions.")
    sasl_oauthbearer_assertion_private_key_passphrase = password("What opens that key.")
    sasl_oauthbearer_assertion_template_file = optional_string("File with further claims of OAuth assertions.")
    sasl_oauthbearer_client_credentials_client_id = optional_string("Client id at the OAuth provider.")
    sasl_oauthbearer_client_credentials_client_secret = password("Client secret at the OAuth provider.")
    sasl_oauthbearer_clock_skew_seconds = int32(30, None, "Difference of clocks that is forgiven with the provider.")
    sasl_oauthbearer_expected_audience = strings(None, None, "Audiences of which an OAuth token must name one.")
    sasl_oauthbearer_expected_issuer = optional_string("Issuer that an OAuth token must name.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms = int64(3_600_000, None, "How often the provider's keys are fetched.")
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = int64(10_000, None, "Longest wait between two tries of that.")
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = int64(100, None, "First wait between two tries of that.")
    sasl_oauthbearer_jwks_endpoint_url = optional_string("Where the provider's keys are.")
    sasl_oauthbearer_jwt_retriever_class = class_name(
        f"{_SECURITY}.oauthbearer.DefaultJwtRetriever", "Java class that fetches OAuth tokens."
    )
    sasl_oauthbearer_jwt_validator_class = class_name(
        f"{_SECURITY}.oauthbearer.DefaultJwtValidator", "Java class that checks OAuth tokens."
    )
    sasl_oauthbearer_scope = optional_string("Scope asked for at the OAuth provider.")
    sasl_oauthbearer_scope_claim_name = string("scope", None, "Claim of a token that holds its scope.")
    sasl_oauthbearer_sub_claim_name = string("sub", None, "Claim of a token that holds its subject.")
    sasl_oauthbearer_token_endpoint_url = optional_string("Where OAuth tokens are fetched.")
    sasl_server_callback_handler_class = class_name(None, "Java class that answers a SASL server's questions.")
    sasl_server_max_receive_size = int32(512 * 1024, None, "Largest message before and during authentication.")
    security_inter_broker_protocol = string(
        "PLAINTEXT",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "What brokers speak among themselves, where inter.broker.listener.name does not say it.",
    )
    security_providers = optional_string("Java classes that bring security algorithms.")
    share_coordinator_append_linger_ms = int32(
        5, at_least(0), "How long the share coordinator gathers records before it writes them."
    )
    share_coordinator_load_buffer_size = int32(5 * MB, at_least(1), "Batch size with which share state is loaded.")
    share_coordinator_snapshot_update_records_per_snapshot = int32(
        500, at_least(0), "Updates of share state after which a snapshot of it is written."
    )
    share_coordinator_state_topic_compression_codec = int32(0, None, "Codec of the topic that holds share state.")
    share_coordinator_state_topic_min_isr = int16(
        2, at_least(1), "min.insync.replicas of the topic that holds share state."
    )
    share_coordinator_state_topic_num_partitions = int32(
        50, at_least(1), "Partitions of the topic that holds share state."
    )
    share_coordinator_state_topic_replication_factor = int16(
        3, at_least(1), "Replicas of the topic that holds share state."
    )
    share_coordinator_state_topic_segment_bytes = int32(
        100 * MB, at_least(1), "Segment size of the topic that holds share state."
    )
    share_coordinator_threads = int32(1, at_least(1), "Threads of the share coordinator.")
    share_coordinator_write_timeout_ms = int32(5000, at_least(1), "How long a write of share state may take.")
    share_fetch_purgatory_purge_interval_requests = int32(
        1000, None, "Finished share fetches after which their waiting room is swept."
    )
    socket_connection_setup_timeout_max_ms = int64(30_000, None, "Longest time that connecting to a broker may take.")
    socket_connection_setup_timeout_ms = int64(10_000, None, "Time that the first try to connect to a broker may take.")
    ssl_allow_dn_changes = flag(False, "Whether a new certificate may bear another name than the one it replaces.")
    ssl_allow_san_changes = flag(False, "Whether a new certificate may lack alternative names of the one it replaces.")
    ssl_cipher_suites = strings(
        (), None, "Cipher suites that are offered; empty: the library's own.", update=PER_BROKER
    )
    ssl_client_auth = string(
        "none", one_of("required", "requested", "none"), "Whether clients must show a certificate.", update=PER_BROKER
    )
    ssl_enabled_protocols = strings(("TLSv1.2", "TLSv1.3"), None, "TLS versions that are offered.", update=PER_BROKER)
    ssl_endpoint_identification_algorithm = string(
        "https", None, "How a server's name is compared with its certificate.", update=PER_BROKER
    )
    ssl_engine_factory_class = class_name(None, "Java class that makes TLS engines.", update=PER_BROKER)
    ssl_key_password = password("What opens the private key.", update=PER_BROKER)
    ssl_keymanager_algorithm = string("SunX509", None, "Algorithm of Java's key manager.", update=PER_BROKER)
    ssl_keystore_certificate_chain = password("The broker's certificate chain, in PEM.", update=PER_BROKER)
    ssl_keystore_key = password("The broker's private key, in PEM.", update=PER_BROKER)
    ssl_keystore_location = optional_string("File with the broker's key and certificates.", update=PER_BROKER)
    ssl_keystore_password = password("What opens that file.", update=PER_BROKER)
    ssl_keystore_type = string("JKS", None, "Format of that file.", update=PER_BROKER)
    ssl_principal_mapping_rules = string("DEFAULT", None, "Rules that make principals of certificates' names.")
    ssl_protocol = string("TLSv1.3", None, "TLS version with which contexts are made.", update=PER_BROKER)
    ssl_provider = optional_string("Java's security provider for TLS.", update=PER_BROKER)
    ssl_secure_random_implementation = optional_string("Random generator for TLS.", update=PER_BROKER)
    ssl_trustmanager_algorithm = string("PKIX", None, "Algorithm of Java's trust manager.", update=PER_BROKER)
    ssl_truststore_certificates = password("Certificates that are trusted, in PEM.", update=PER_BROKER)
    ssl_truststore_location = optional_string("File with certificates that are trusted.", update=PER_BROKER)
    ssl_truststore_password = password("What opens that file.", update=PER_BROKER)
    ssl_truststore_type = string("JKS", None, "Format of that file.", update=PER_BROKER)
    telemetry_max_bytes = int32(MB, at_least(1), "Largest push of metrics from a client, uncompressed.")
    transaction_state_log_load_buffer_size = int32(
        5 * MB, at_least(1), "Batch size with which the state of transactions is loaded."
    )
    transaction_two_phase_commit_enable = flag(
        False, "Whether producers may take part in two-phase commits of somebody else."
    )


for _key in keys_of(InactiveBrokerConfig):
    _key.acts = False
