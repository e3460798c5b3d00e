"""Metadata (3): brokers, topics, partitions and their leaders.

v0: an empty list of topics means all of them; from v1 on null does, and an empty list means none.
v4: the client may forbid auto-creation. v7: leader epochs. v8 to v10: authorized operations of the cluster.
v10: topic ids. v12: topics can be requested by id (name null). v13: a top-level error code.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

MetadataRequestTopic = Struct(
    "MetadataRequestTopic",
    field("topic_id", Uuid, since=10),
    field("name", String, nullable=10),
)

REQUEST = Message(
    "MetadataRequest",
    field("topics", Array(MetadataRequestTopic), nullable=1),
    field("allow_auto_topic_creation", Bool, since=4, default=True),
    field("include_cluster_authorized_operations", Bool, since=8, until=10),
    field("include_topic_authorized_operations", Bool, since=8),
    versions=(0, 13),
    flexible=9,
)

MetadataResponseBroker = Struct(
    "MetadataResponseBroker",
    field("node_id", Int32),
    field("host", String),
    field("port", Int32),
    field("rack", String, since=1, nullable=1, default=None),
)

MetadataResponsePartition = Struct(
    "MetadataResponsePartition",
    field("error_code", Int16),
    field("partition_index", Int32),
    field("leader_id", Int32),
    field("leader_epoch", Int32, since=7, default=-1),
    field("replica_nodes", Array(Int32)),
    field("isr_nodes", Array(Int32)),
    field("offline_replicas", Array(Int32), since=5),
)

MetadataResponseTopic = Struct(
    "MetadataResponseTopic",
    field("error_code", Int16),
    field("name", String, nullable=12),
    field("topic_id", Uuid, since=10),
    field("is_internal", Bool, since=1),
    field("partitions", Array(MetadataResponsePartition)),
    field("topic_authorized_operations", Int32, since=8, default=-0x80000000),
)

RESPONSE = Message(
    "MetadataResponse",
    field("throttle_time_ms", Int32, since=3),
    field("brokers", Array(MetadataResponseBroker)),
    field("cluster_id", String, since=2, nullable=2, default=None),
    field("controller_id", Int32, since=1, default=-1),
    field("topics", Array(MetadataResponseTopic)),
    field("cluster_authorized_operations", Int32, since=8, until=10, default=-0x80000000),
    field("error_code", Int16, since=13),
    versions=(0, 13),
    flexible=9,
)
