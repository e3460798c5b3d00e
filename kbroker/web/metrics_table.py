"""Metrics of the broker. Names are those of the Prometheus JMX exporter for Kafka; kbroker_ marks additional ones.

The table in docs/operations.md is generated from this module.
"""

from __future__ import annotations

from typing import Final

from kbroker.web.exposition import counter, gauge
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
    "Records written to partitions that this broker leads, from log end offsets: not reset by a restart.",
    "topic",
)
BYTES_IN = counter(
    "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches written since startup.", "topic"
)
BYTES_OUT = counter(
    "kafka_server_brokertopicmetrics_bytesout_total",
    "Bytes of record batches read since startup.",
    "topic",
)

REQUESTS = counter("kafka_network_requestmetrics_requests_total", "Requests by API and version.", "request", "version")
CONNECTIONS = gauge("kafka_server_socketservermetrics_connection_count", "Open client connections.", "listener")
MEMORY_USED = gauge(
    "kafka_network_socketserver_memorypoolused", "Bytes used by requests and unsent responses of all connections."
)
MEMORY_AVAILABLE = gauge(
    "kafka_network_socketserver_memorypoolavailable",
    "Bytes left of queued.max.request.bytes; at 0 the broker stops reading requests.",
)
WAITING = gauge("kafka_server_delayedoperationpurgatory_purgatorysize", "Delayed requests.", "delayedOperation")
FETCH_SESSIONS = gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Cached fetch sessions.")
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
OFFLINE_REPLICAS = gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Replicas on this broker that could not be opened."
)

CONTROLLERS = gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 if this broker is the controller.")
OFFLINE = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions in the cluster without a leader."
)
GLOBAL_TOPICS = gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics in the cluster.")
GLOBAL_PARTITIONS = gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions in the cluster.")

LOG_SIZE = gauge("kafka_log_log_size", "Size of the partition's segments in bytes.", "topic", "partition")
LOG_END = gauge("kafka_log_log_logendoffset", "Log end offset.", "topic", "partition")
LOG_START = gauge("kafka_log_log_logstartoffset", "Log start offset.", "topic", "partition")
LOG_SEGMENTS = gauge("kafka_log_log_numlogsegments", "Number of segments.", "topic", "partition")
UNPARSABLE = gauge("kbroker_log_unparsable_batches", "Stored batches that could not be parsed since startup.", "topic")

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
GROUPS_BY_STATE = gauge("kbroker_groups", "Groups of all types by state.", "state")
OFFSETS = gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets.")

METRICS: Final = (
    *(BROKER_STATE, INFO),
    *(MESSAGES_IN, BYTES_IN, BYTES_OUT),
    *(REQUESTS, CONNECTIONS, MEMORY_USED, MEMORY_AVAILABLE, WAITING, FETCH_SESSIONS, PEER_ERRORS, BUGS),
    *(PARTITIONS, LEADERS, UNDER_REPLICATED, UNDER_MIN_ISR, OFFLINE_REPLICAS),
    *(CONTROLLERS, OFFLINE, GLOBAL_TOPICS, GLOBAL_PARTITIONS),
    *(LOG_SIZE, LOG_END, LOG_START, LOG_SEGMENTS, UNPARSABLE),
    *(MAX_DIRTY, LAST_RUN, UNCLEANABLE, UNCLEANABLE_BYTES, RECOPY, CLEAN_TIME, CLEANER_BUFFER, COMPACTION_DELAY),
    *(DIRECTORY_OFFLINE, DIRECTORIES_OFFLINE, DIRECTORY_WRITABLE, DIRECTORY_FREE, DIRECTORY_TOTAL),
    *(GROUPS, GROUPS_PREPARING, GROUPS_COMPLETING, GROUPS_STABLE, GROUPS_EMPTY, GROUPS_BY_STATE, OFFSETS),
    *PROCESS_METRICS,
)
