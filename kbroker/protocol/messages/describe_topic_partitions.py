"""DescribeTopicPartitions (75): topics and partitions page by page, with eligible leader replicas."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

TopicRequest = Struct(
    "TopicRequest",
    field("name", String),
)

Cursor = Struct(
    "Cursor",
    field("topic_name", String),
    field("partition_index", Int32),
)

REQUEST = Message(
    "DescribeTopicPartitionsRequest",
    field("topics", Array(TopicRequest)),
    field("response_partition_limit", Int32, default=2000),
    field("cursor", Cursor, nullable=0, default=None),
    versions=(0, 0),
    flexible=0,
)

DescribeTopicPartitionsResponsePartition = Struct(
    "DescribeTopicPartitionsResponsePartition",
    field("error_code", Int16),
    field("partition_index", Int32),
    field("leader_id", Int32),
    field("leader_epoch", Int32, default=-1),
    field("replica_nodes", Array(Int32)),
    field("isr_nodes", Array(Int32)),
    field("eligible_leader_replicas", Array(Int32), nullable=0, default=None),
    field("last_known_elr", Array(Int32), nullable=0, default=None),
    field("offline_replicas", Array(Int32)),
)

DescribeTopicPartitionsResponseTopic = Struct(
    "DescribeTopicPartitionsResponseTopic",
    field("error_code", Int16),
    field("name", String, nullable=0),
    field("topic_id", Uuid),
    field("is_internal", Bool),
    field("partitions", Array(DescribeTopicPartitionsResponsePartition)),
    field("topic_authorized_operations", Int32, default=-0x80000000),
)

RESPONSE = Message(
    "DescribeTopicPartitionsResponse",
    field("throttle_time_ms", Int32),
    field("topics", Array(DescribeTopicPartitionsResponseTopic)),
    field("next_cursor", Cursor, nullable=0, default=None),
    versions=(0, 0),
    flexible=0,
)
