"""Every metric of the broker, under the names that Kafka's JMX exporter gives with its usual rules; our own begin with
kbroker_. docs/operations.md shows this table."""

from __future__ import annotations

from typing import Final

from kbroker.web.exposition import counter, gauge
from kbroker.web.process_metrics import PROCESS_METRICS

__all__ = ["METRICS"]

BROKER_STATE = gauge(
    "kafka_server_kafkaserver_brokerstate", "Kafka's number: 1 starts, 2 recovers logs, 3 runs, 7 stops."
)
INFO = gauge("kbroker_info", "Which broker this is; always 1.", "version", "cluster_id", "broker_id")

MESSAGES_IN = counter(
    "kafka_server_brokertopicmetrics_messagesin_total",
    "Records written to partitions led here. Read off the logs: a topic's number goes on after a restart.",
    "topic",
)
BYTES_IN = counter(
    "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches written since the start.", "topic"
)
BYTES_OUT = counter(
    "kafka_server_brokertopicmetrics_bytesout_total",
    "Bytes of record batches read since the start.",
    "topic",
)

REQUESTS = counter("kafka_network_requestmetrics_requests_total", "Requests by API and version.", "request", "version")
CONNECTIONS = gauge("kafka_server_socketservermetrics_connection_count", "Open connections of clients.", "listener")
MEMORY_USED = gauge(
    "kafka_network_socketserver_memorypoolused", "Bytes that requests and unsent answers hold now, of all connections."
)
MEMORY_AVAILABLE = gauge(
    "kafka_network_socketserver_memorypoolavailable", "What is left of queued.max.request.bytes; at 0 reading stops."
)
WAITING = gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize", "Requests that wait for data.", "delayedOperation"
)
FETCH_SESSIONS = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions that are remembered."
)
PEER_ERRORS = counter("kbroker_peer_errors_total", "Connections closed because the client broke the protocol.")
BUGS = counter("kbroker_bugs_total", "Requests and connections that met a bug of kbroker; the log has its traceback.")

PARTITIONS = gauge("kafka_server_replicamanager_partitioncount", "Partitions that this broker holds.")
LEADERS = gauge("kafka_server_replicamanager_leadercount", "Partitions that it leads.")
UNDER_REPLICATED = gauge(
    "kafka_server_replicamanager_underreplicatedpartitions", "Partitions led here that lack a replica in sync."
)
UNDER_MIN_ISR = gauge(
    "kafka_server_replicamanager_underminisrpartitioncount", "Partitions led here that refuse acks=all."
)
OFFLINE_REPLICAS = gauge("kafka_server_replicamanager_offlinereplicacount", "Partitions here that could not be opened.")

CONTROLLERS = gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 if this broker is the controller.")
OFFLINE = gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions of the cluster that nobody leads."
)
GLOBAL_TOPICS = gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster.")
GLOBAL_PARTITIONS = gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster.")

LOG_SIZE = gauge("kafka_log_log_size", "Bytes of a partition's segments.", "topic", "partition")
LOG_END = gauge("kafka_log_log_logendoffset", "Offset of the next record.", "topic", "partition")
LOG_START = gauge("kafka_log_log_logstartoffset", "Offset of the first record.", "topic", "partition")
LOG_SEGMENTS = gauge("kafka_log_log_numlogsegments", "Segments of a partition.", "topic", "partition")
UNPARSABLE = gauge("kbroker_log_unparsable_batches", "Stored batches that could not be read since the start.", "topic")

MAX_DIRTY = gauge(
    "kafka_log_logcleanermanager_max_dirty_percent", "Share of the dirtiest log that is not compacted yet, in percent."
)
LAST_RUN = gauge("kafka_log_logcleanermanager_time_since_last_run_ms", "Since somebody looked for a log to compact.")
UNCLEANABLE = gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "Partitions that are not compacted any more, for something in them is rotten.",
    "logDirectory",
)
UNCLEANABLE_BYTES = gauge(
    "kafka_log_logcleanermanager_uncleanable_bytes", "What of them is not compacted.", "logDirectory"
)
RECOPY = gauge("kafka_log_logcleaner_cleaner_recopy_percent", "What the last compaction left, in percent.")
CLEAN_TIME = gauge("kafka_log_logcleaner_max_clean_time_secs", "How long the last compaction took.")
CLEANER_BUFFER = gauge(
    "kafka_log_logcleaner_max_buffer_utilization_percent", "How full its table of keys was, in percent."
)
COMPACTION_DELAY = gauge(
    "kafka_log_logcleaner_max_compaction_delay_secs", "How far a log is beyond its max.compaction.lag.ms."
)

DIRECTORY_OFFLINE = gauge(
    "kafka_log_logmanager_logdirectoryoffline",
    "1 if a data directory failed: it stays out until a restart.",
    "logDirectory",
)
DIRECTORIES_OFFLINE = gauge("kafka_log_logmanager_offlinelogdirectorycount", "How many of them failed.")
DIRECTORY_WRITABLE = gauge(
    "kbroker_log_directory_writable", "0 while produce is refused: the directory is full or offline.", "logDirectory"
)
DIRECTORY_FREE = gauge("kbroker_log_directory_free_bytes", "Room on its file system.", "logDirectory")
DIRECTORY_TOTAL = gauge("kbroker_log_directory_total_bytes", "Size of its file system.", "logDirectory")

GROUPS = gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Consumer groups.")
GROUPS_PREPARING = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", "Groups that wait for members to join."
)
GROUPS_COMPLETING = gauge(
    "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", "Groups that wait for an assignment."
)
GROUPS_STABLE = gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Groups that consume.")
GROUPS_EMPTY = gauge("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Groups without members.")
GROUPS_BY_STATE = gauge("kbroker_groups", "Groups by the state that clients see, of whatever protocol.", "state")
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
