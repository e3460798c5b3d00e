"""DescribeShareGroupOffsets (90): start offsets of share groups."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

DescribeShareGroupOffsetsRequestTopic = Struct(
    "DescribeShareGroupOffsetsRequestTopic",
    field("topic_name", String),
    field("partitions", Array(Int32)),
)

DescribeShareGroupOffsetsRequestGroup = Struct(
    "DescribeShareGroupOffsetsRequestGroup",
    field("group_id", String),
    field("topics", Array(DescribeShareGroupOffsetsRequestTopic), nullable=0),
)

REQUEST = Message(
    "DescribeShareGroupOffsetsRequest",
    field("groups", Array(DescribeShareGroupOffsetsRequestGroup)),
    versions=(0, 0),
    flexible=0,
)

DescribeShareGroupOffsetsResponsePartition = Struct(
    "DescribeShareGroupOffsetsResponsePartition",
    field("partition_index", Int32),
    field("start_offset", Int64),
    field("leader_epoch", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
)

DescribeShareGroupOffsetsResponseTopic = Struct(
    "DescribeShareGroupOffsetsResponseTopic",
    field("topic_name", String),
    field("topic_id", Uuid),
    field("partitions", Array(DescribeShareGroupOffsetsResponsePartition)),
)

DescribeShareGroupOffsetsResponseGroup = Struct(
    "DescribeShareGroupOffsetsResponseGroup",
    field("group_id", String),
    field("topics", Array(DescribeShareGroupOffsetsResponseTopic)),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
)

RESPONSE = Message(
    "DescribeShareGroupOffsetsResponse",
    field("throttle_time_ms", Int32),
    field("groups", Array(DescribeShareGroupOffsetsResponseGroup)),
    versions=(0, 0),
    flexible=0,
)
