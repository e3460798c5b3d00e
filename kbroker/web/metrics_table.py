"""Metrics of the broker. Names are those of the Prometheus JMX exporter for Kafka; kbroker_ marks additional ones.

The table in docs/operations.md is generated from this module.
"""

from __future__ import annotations

from typing import Final

from kbroker.web.exposition import counter, gauge, histogram
from kbroker.web.process_metrics import PROCESS_METRICS

__all__ = ["METRICS"]

BROKER_STATE = gauge(
    "kafka_server_kafkaserver_brokerstate", "Broker state: 1 starting, 2 log recovery, 3 running, 7 shutting down."
)
INFO = gauge(
    "kbroker_info", "Version, cluster id and broker id as labels; always 1.", "version", "cluster_id", "broker_id"
)

MESSAGES_IN = counter(
    "kafka_server_brokertopicmetrics_messagesin_total",
    "Records written since startup to partitions while this broker led them.",
    "topic",
)
BYTES_IN = counter(
    "kafka_server_brokertopicmetrics_bytesin_total",
    "Bytes of record batches written since startup to partitions while this broker led them.",
    "topic",
)
BYTES_OUT = counter(
    "kafka_server_brokertopicmetrics_bytesout_total",
    "Bytes of record batches read by consumers since startup.",
    "topic",
)
BYTES_REJECTED = counter(
    "kafka_server_brokertopicmetrics_bytesrejected_total",
    "Bytes of record batches refused because they are larger than max.message.bytes.",
    "topic",
)
REPLICATION_BYTES_IN = counter(
    "kafka_server_brokertopicmetrics_replicationbytesin_total",
    "Bytes of record batches fetched from other leaders since startup.",
)
REPLICATION_BYTES_OUT = counter(
    "kafka_server_brokertopicmetrics_replicationbytesout_total",
    "Bytes of record batches read by followers since startup.",
)

REASSIGNMENT_BYTES_IN = counter(
    "kafka_server_brokertopicmetrics_reassignmentbytesin_total",
    "Part of replicationbytesin that was fetched for replicas that a reassignment adds here.",
)
REASSIGNMENT_BYTES_OUT = counter(
    "kafka_server_brokertopicmetrics_reassignmentbytesout_total",
    "Part of replicationbytesout that was read by brokers to which a reassignment adds a replica.",
)

PRODUCE_REQUESTS = counter(
    "kafka_server_brokertopicmetrics_totalproducerequests_total", "Produce requests of all topics."
)
FETCH_REQUESTS = counter(
    "kafka_server_brokertopicmetrics_totalfetchrequests_total", "Fetch requests of consumers for all topics."
)
FAILED_PRODUCES = counter(
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "Partitions in Produce responses with an error code.",
)
FAILED_FETCHES = counter(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "Partitions in Fetch responses to consumers with an error code.",
)

REQUESTS = counter(
    "kafka_network_requestmetrics_requests_total",
    "Requests by API and version. Fetch is the sum of FetchConsumer and FetchFollower, as in Kafka.",
    "request",
    "version",
)
TOTAL_TIME = histogram(
    "kafka_network_requestmetrics_totaltimems",
    "Milliseconds from the poll that received a request until its response was sent, or queued for a slow client.",
    "request",
)
LOCAL_TIME = histogram(
    "kafka_network_requestmetrics_localtimems",
    "Milliseconds in the handler: duration of the run that handled a request together with all requests of its poll.",
    "request",
)
REMOTE_TIME = histogram(
    "kafka_network_requestmetrics_remotetimems",
    "Milliseconds that a request waited for records, replicas, members, a disk or a thread; 0 if it did not wait.",
    "request",
)
THROTTLE_TIME = histogram(
    "kafka_network_requestmetrics_throttletimems",
    "Milliseconds for which quotas throttled the client; 0 if they did not. Shown for APIs that were throttled.",
    "request",
)
ERRORS = counter(
    "kafka_network_requestmetrics_errors_total",
    "Error codes in responses, for each topic or partition with an error. Shown for errors that have occurred.",
    "request",
    "error",
)
HANDLER_IDLE = gauge(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "Share of the time, 0 to 1, in which the event loop handled no requests, over about the last minute.",
)
BUSY_TIME = counter("kbroker_requests_seconds_total", "Seconds in which the event loop handled requests.")
LOOP_LAG = histogram(
    "kbroker_loop_lag_ms", "Milliseconds by which the event loop woke up a task too late, measured once a second."
)
CONNECTIONS = gauge("kafka_server_socketservermetrics_connection_count", "Open client connections.", "listener")
LOGINS = counter(
    "kafka_server_socketservermetrics_successful_authentication_total", "Successful SASL logins.", "listener"
)
FAILED_LOGINS = counter(
    "kafka_server_socketservermetrics_failed_authentication_total", "Failed SASL logins.", "listener"
)
RENEWED_LOGINS = counter(
    "kafka_server_socketservermetrics_successful_reauthentication_total",
    "Logins of clients that were logged in (connections.max.reauth.ms).",
    "listener",
)
EXPIRED_SESSIONS = counter(
    "kafka_server_socketservermetrics_expired_connections_killed_total",
    "Connections closed because their client did not authenticate again in time.",
    "listener",
)
MEMORY_USED = gauge(
    "kafka_network_socketserver_memorypoolused", "Bytes used by requests and unsent responses of all connections."
)
MEMORY_AVAILABLE = gauge(
    "kafka_network_socketserver_memorypoolavailable",
    "Bytes left of queued.max.request.bytes; at 0 the broker stops reading requests.",
)
WAITING = gauge("kafka_server_delayedoperationpurgatory_purgatorysize", "Delayed requests.", "delayedOperation")
FETCH_SESSIONS = gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Cached fetch sessions.")
TLS_HANDSHAKES = counter("kbroker_tls_handshakes_total", "Complete TLS handshakes of clients.", "listener")
TLS_FAILURES = counter(
    "kbroker_tls_failed_handshakes_total", "TLS handshakes that failed: wrong certificates, or no TLS.", "listener"
)
TLS_EXPIRY = gauge(
    "kbroker_tls_certificate_not_after_seconds",
    "Time when the certificate of a listener expires, in seconds since the epoch.",
    "listener",
)
PEER_ERRORS = counter("kbroker_peer_errors_total", "Connections closed because of a protocol error by the client.")
BUGS = counter("kbroker_bugs_total", "Unexpected errors in kbroker (bugs); the log has their tracebacks.")

PARTITIONS = gauge("kafka_server_replicamanager_partitioncount", "Partitions with a replica on this broker.")
LEADERS = gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.")
UNDER_REPLICATED = gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions led by this broker with fewer in-sync replicas than replicas.",
)
UNDER_MIN_ISR = gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
)
AT_MIN_ISR = gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "Partitions led by this broker with exactly min.insync.replicas in-sync replicas.",
)
REASSIGNING = gauge(
    "kafka_server_replicamanager_reassigningpartitions", "Partitions led by this broker that are being reassigned."
)
ISR_SHRINKS = counter(
    "kafka_server_replicamanager_isrshrinks_total", "Replicas removed from an ISR by this broker as the leader."
)
ISR_EXPANDS = counter(
    "kafka_server_replicamanager_isrexpands_total", "Replicas added to an ISR by this broker as the leader."
)
FAILED_ISR_UPDATES = counter(
    "kafka_server_replicamanager_failedisrupdates_total", "ISR changes of this broker that the controller refused."
)
MAX_LAG = gauge(
    "kafka_server_replicafetchermanager_maxlag", "Largest replication lag of a partition followed here.", "clientId"
)
FAILED_PARTITIONS = gauge(
    "kafka_server_replicafetchermanager_failedpartitionscount",
    "Partitions followed here whose last fetch failed.",
    "clientId",
)
FETCHER_LAG = gauge(
    "kafka_server_fetcherlagmetrics_consumerlag",
    "Replication lag: committed records of the leader that this follower did not have after its last fetch.",
    "clientId",
    "topic",
    "partition",
)
FETCHER_BYTES = counter(
    "kafka_server_fetcherstats_bytes_total", "Bytes of record batches fetched from a leader.", "clientId"
)
FETCHER_REQUESTS = counter(
    "kafka_server_fetcherstats_requests_total", "Responses to fetches that a leader has sent.", "clientId"
)
FETCHER_TIME = histogram(
    "kbroker_fetcher_fetch_ms",
    "Milliseconds from a fetch of this follower to the response, with the time that the leader waits for records.",
    "clientId",
)
THROTTLED_BYTES = counter(
    "kbroker_replication_throttled_bytes_total",
    "Bytes of throttled replicas that this broker has sent as leader or fetched as follower.",
    "role",
)
THROTTLED_SECONDS = counter(
    "kbroker_replication_throttled_seconds_total",
    "Seconds in which throttled replicas were held back because their rate was at its limit.",
    "role",
)
THROTTLED_RATE = gauge(
    "kbroker_replication_throttled_rate_bytes",
    "Bytes per second that the replication throttle of this broker allows; absent without a throttle.",
    "role",
)
OFFLINE_REPLICAS = gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Replicas on this broker that could not be opened."
)

CONTROLLERS = gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 if this broker is the controller.")
OFFLINE = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions in the cluster without a leader."
)
ACTIVE_BROKERS = gauge("kafka_controller_kafkacontroller_activebrokercount", "Live brokers of the cluster.")
PREFERRED_IMBALANCE = gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions in the cluster that are not led by their preferred replica.",
)
ELECTIONS = histogram(
    "kafka_controller_controllerstats_leaderelectionrateandtimems",
    "Milliseconds in which this broker, as the controller, elected new leaders and stored them.",
)
UNCLEAN_ELECTIONS = counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "Partitions for which this broker, as the controller, elected a leader outside the ISR: records may be lost.",
)
GLOBAL_TOPICS = gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics in the cluster.")
GLOBAL_PARTITIONS = gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions in the cluster.")

ZOOKEEPER_STATE = gauge(
    "kafka_server_sessionexpirelistener_sessionstate",
    "1 for the state of the session with ZooKeeper: CONNECTED or CONNECTING.",
    "state",
)
ZOOKEEPER_CONNECTS = counter(
    "kafka_server_sessionexpirelistener_zookeepersyncconnects_total", "Connections to ZooKeeper."
)
ZOOKEEPER_DISCONNECTS = counter(
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total", "Connections to ZooKeeper that were lost."
)
ZOOKEEPER_EXPIRATIONS = counter(
    "kafka_server_sessionexpirelistener_zookeeperexpires_total",
    "Sessions that ZooKeeper has ended: the broker was gone for zookeeper.session.timeout.ms.",
)
ZOOKEEPER_TIME = histogram(
    "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
    "Milliseconds from a request to ZooKeeper to its response.",
)

LOG_SIZE = gauge("kafka_log_log_size", "Size of the partition's segments in bytes.", "topic", "partition")
LOG_END = gauge("kafka_log_log_logendoffset", "Log end offset.", "topic", "partition")
LOG_START = gauge("kafka_log_log_logstartoffset", "Log start offset.", "topic", "partition")
LOG_SEGMENTS = gauge("kafka_log_log_numlogsegments", "Number of segments.", "topic", "partition")
UNPARSABLE = gauge("kbroker_log_unparsable_batches", "Stored batches that could not be parsed since startup.", "topic")

FLUSH_TIME = histogram(
    "kafka_log_logflushstats_logflushrateandtimems", "Milliseconds of an fsync of one partition, with its indexes."
)

MAX_DIRTY = gauge(
    "kafka_log_logcleanermanager_max_dirty_percent", "Largest share of a log that is not compacted yet, in percent."
)
LAST_RUN = gauge("kafka_log_logcleanermanager_time_since_last_run_ms", "Milliseconds since the last cleaner run.")
UNCLEANABLE = gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "Partitions excluded from compaction because of corruption.",
    "logDirectory",
)
UNCLEANABLE_BYTES = gauge(
    "kafka_log_logcleanermanager_uncleanable_bytes",
    "Uncompacted bytes of the partitions excluded from compaction.",
    "logDirectory",
)
RECOPY = gauge(
    "kafka_log_logcleaner_cleaner_recopy_percent",
    "Size after the last compaction relative to the size before, in percent.",
)
CLEAN_TIME = gauge("kafka_log_logcleaner_max_clean_time_secs", "Duration of the last compaction in seconds.")
CLEANER_BUFFER = gauge(
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    "Utilization of the deduplication buffer in the last compaction, in percent.",
)
CLEANER_RUNS = counter("kbroker_log_cleaner_runs_total", "Completed compactions of a partition.")
CLEANER_READ = counter("kbroker_log_cleaner_read_bytes_total", "Bytes of segments before their compactions.")
CLEANER_WRITTEN = counter("kbroker_log_cleaner_written_bytes_total", "Bytes of segments after their compactions.")
CLEANER_SECONDS = counter("kbroker_log_cleaner_seconds_total", "Duration of all compactions in seconds.")
COMPACTION_DELAY = gauge(
    "kafka_log_logcleaner_max_compaction_delay_secs",
    "Largest delay of a compaction beyond max.compaction.lag.ms, in seconds.",
)

DIRECTORY_OFFLINE = gauge(
    "kafka_log_logmanager_logdirectoryoffline",
    "1 if the data directory is offline because of a disk error, until the next restart.",
    "logDirectory",
)
DIRECTORIES_OFFLINE = gauge("kafka_log_logmanager_offlinelogdirectorycount", "Number of offline data directories.")
DIRECTORY_WRITABLE = gauge(
    "kbroker_log_directory_writable", "0 if the data directory is full or offline and rejects writes.", "logDirectory"
)
DIRECTORY_FREE = gauge(
    "kbroker_log_directory_free_bytes", "Free bytes on the file system of the data directory.", "logDirectory"
)
DIRECTORY_TOTAL = gauge(
    "kbroker_log_directory_total_bytes", "Size of the file system of the data directory in bytes.", "logDirectory"
)

GROUPS = gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups.")
GROUPS_PREPARING = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", "Groups in state PreparingRebalance."
)
GROUPS_COMPLETING = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", "Groups in state CompletingRebalance."
)
GROUPS_STABLE = gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Groups in state Stable.")
GROUPS_EMPTY = gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Groups in state Empty.")
GROUPS_DEAD = gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsdead", "Groups in state Dead.")
GROUPS_BY_STATE = gauge("kbroker_groups", "Groups of all types by state.", "state")
OFFSETS = gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets.")

QUOTAS = gauge("kbroker_quotas", "Users, client ids and IP addresses with a quota.")
QUOTA = gauge(
    "kbroker_quota",
    "Quotas in force; <default> for the default of an entity type. At most 1,000 entities are shown.",
    "user",
    "client_id",
    "ip",
    "quota",
)

METRICS: Final = (
    *(BROKER_STATE, INFO),
    *(MESSAGES_IN, BYTES_IN, BYTES_OUT, BYTES_REJECTED, REPLICATION_BYTES_IN, REPLICATION_BYTES_OUT),
    *(REASSIGNMENT_BYTES_IN, REASSIGNMENT_BYTES_OUT),
    *(PRODUCE_REQUESTS, FETCH_REQUESTS, FAILED_PRODUCES, FAILED_FETCHES),
    *(REQUESTS, TOTAL_TIME, LOCAL_TIME, REMOTE_TIME, THROTTLE_TIME, ERRORS, HANDLER_IDLE, BUSY_TIME, LOOP_LAG),
    *(LOGINS, FAILED_LOGINS, RENEWED_LOGINS, EXPIRED_SESSIONS),
    *(CONNECTIONS, MEMORY_USED, MEMORY_AVAILABLE, WAITING, FETCH_SESSIONS, PEER_ERRORS, BUGS),
    *(TLS_HANDSHAKES, TLS_FAILURES, TLS_EXPIRY),
    *(PARTITIONS, LEADERS, UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR, OFFLINE_REPLICAS, REASSIGNING),
    *(ISR_SHRINKS, ISR_EXPANDS, FAILED_ISR_UPDATES),
    *(MAX_LAG, FAILED_PARTITIONS, FETCHER_LAG, FETCHER_BYTES, FETCHER_REQUESTS, FETCHER_TIME),
    *(THROTTLED_BYTES, THROTTLED_SECONDS, THROTTLED_RATE),
    *(CONTROLLERS, ACTIVE_BROKERS, OFFLINE, PREFERRED_IMBALANCE, ELECTIONS, UNCLEAN_ELECTIONS),
    *(GLOBAL_TOPICS, GLOBAL_PARTITIONS),
    *(ZOOKEEPER_STATE, ZOOKEEPER_CONNECTS, ZOOKEEPER_DISCONNECTS, ZOOKEEPER_EXPIRATIONS, ZOOKEEPER_TIME),
    *(LOG_SIZE, LOG_END, LOG_START, LOG_SEGMENTS, UNPARSABLE, FLUSH_TIME),
    *(MAX_DIRTY, LAST_RUN, UNCLEANABLE, UNCLEANABLE_BYTES, RECOPY, CLEAN_TIME, CLEANER_BUFFER, COMPACTION_DELAY),
    *(CLEANER_RUNS, CLEANER_READ, CLEANER_WRITTEN, CLEANER_SECONDS),
    *(DIRECTORY_OFFLINE, DIRECTORIES_OFFLINE, DIRECTORY_WRITABLE, DIRECTORY_FREE, DIRECTORY_TOTAL),
    *(GROUPS, GROUPS_PREPARING, GROUPS_COMPLETING, GROUPS_STABLE, GROUPS_EMPTY, GROUPS_DEAD, GROUPS_BY_STATE, OFFSETS),
    *(QUOTAS, QUOTA),
    *PROCESS_METRICS,
)
