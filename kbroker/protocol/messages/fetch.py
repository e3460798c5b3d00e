"""Fetch (1): record batches from a given offset on, for consumers and for followers.

v1: quota throttling. v2: responses may have magic 1. v4: magic 2, and read_committed.
v7: incremental sessions (KIP-227). v9: fencing by leader epoch. v10: zstd batches are not converted.
v11: the client's rack; a preferred read replica. v12: the last fetched epoch, and the diverging epoch.
v13: topics are named by id. v14: the client knows OFFSET_MOVED_TO_TIERED_STORAGE.
v15: followers identify themselves in a tagged field. v16: endpoints of new leaders. v17: directory ids of followers.
v18: followers send their high watermark (KIP-1166).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, Records, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

ReplicaState = Struct(
    "ReplicaState",
    field("replica_id", Int32, since=15, default=-1),
    field("replica_epoch", Int64, since=15, default=-1),
)

FetchPartition = Struct(
    "FetchPartition",
    field("partition", Int32),
    field("current_leader_epoch", Int32, since=9, default=-1),
    field("fetch_offset", Int64),
    field("last_fetched_epoch", Int32, since=12, default=-1),
    field("log_start_offset", Int64, since=5, default=-1),
    field("partition_max_bytes", Int32),
    field("replica_directory_id", Uuid, since=17, tag=0),
    field("high_watermark", Int64, since=18, tag=1, default=0x7FFFFFFFFFFFFFFF),
)

FetchTopic = Struct(
    "FetchTopic",
    field("topic", String, until=12),
    field("topic_id", Uuid, since=13),
    field("partitions", Array(FetchPartition)),
)

ForgottenTopic = Struct(
    "ForgottenTopic",
    field("topic", String, since=7, until=12),
    field("topic_id", Uuid, since=13),
    field("partitions", Array(Int32), since=7),
)

REQUEST = Message(
    "FetchRequest",
    field("cluster_id", String, since=12, nullable=12, tag=0, default=None),
    field("replica_id", Int32, until=14, default=-1),
    field("replica_state", ReplicaState, since=15, tag=1),
    field("max_wait_ms", Int32),
    field("min_bytes", Int32),
    field("max_bytes", Int32, since=3, default=0x7FFFFFFF),
    field("isolation_level", Int8, since=4),
    field("session_id", Int32, since=7),
    field("session_epoch", Int32, since=7, default=-1),
    field("topics", Array(FetchTopic)),
    field("forgotten_topics_data", Array(ForgottenTopic), since=7),
    field("rack_id", String, since=11),
    versions=(0, 18),
    flexible=12,
)

EpochEndOffset = Struct(
    "EpochEndOffset",
    field("epoch", Int32, since=12, default=-1),
    field("end_offset", Int64, since=12, default=-1),
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    field("leader_id", Int32, since=12, default=-1),
    field("leader_epoch", Int32, since=12, default=-1),
)

SnapshotId = Struct(
    "SnapshotId",
    field("end_offset", Int64, default=-1),
    field("epoch", Int32, default=-1),
)

AbortedTransaction = Struct(
    "AbortedTransaction",
    field("producer_id", Int64, since=4),
    field("first_offset", Int64, since=4),
)

PartitionData = Struct(
    "PartitionData",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("high_watermark", Int64),
    field("last_stable_offset", Int64, since=4, default=-1),
    field("log_start_offset", Int64, since=5, default=-1),
    field("diverging_epoch", EpochEndOffset, since=12, tag=0),
    field("current_leader", LeaderIdAndEpoch, since=12, tag=1),
    field("snapshot_id", SnapshotId, since=12, tag=2),
    field("aborted_transactions", Array(AbortedTransaction), since=4, nullable=4),
    field("preferred_read_replica", Int32, since=11, default=-1),
    field("records", Records, nullable=0),
)

FetchableTopicResponse = Struct(
    "FetchableTopicResponse",
    field("topic", String, until=12),
    field("topic_id", Uuid, since=13),
    field("partitions", Array(PartitionData)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    field("node_id", Int32, since=16),
    field("host", String, since=16),
    field("port", Int32, since=16),
    field("rack", String, since=16, nullable=16, default=None),
)

RESPONSE = Message(
    "FetchResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16, since=7),
    field("session_id", Int32, since=7),
    field("responses", Array(FetchableTopicResponse)),
    field("node_endpoints", Array(NodeEndpoint), since=16, tag=0),
    versions=(0, 18),
    flexible=12,
)
