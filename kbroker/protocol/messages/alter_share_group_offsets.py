"""AlterShareGroupOffsets (91): set start offsets of share groups."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

AlterShareGroupOffsetsRequestPartition = Struct(
    "AlterShareGroupOffsetsRequestPartition",
    field("partition_index", Int32),
    field("start_offset", Int64),
)

AlterShareGroupOffsetsRequestTopic = Struct(
    "AlterShareGroupOffsetsRequestTopic",
    field("topic_name", String),
    field("partitions", Array(AlterShareGroupOffsetsRequestPartition)),
)

REQUEST = Message(
    "AlterShareGroupOffsetsRequest",
    field("group_id", String),
    field("topics", Array(AlterShareGroupOffsetsRequestTopic)),
    versions=(0, 0),
    flexible=0,
)

AlterShareGroupOffsetsResponsePartition = Struct(
    "AlterShareGroupOffsetsResponsePartition",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
)

AlterShareGroupOffsetsResponseTopic = Struct(
    "AlterShareGroupOffsetsResponseTopic",
    field("topic_name", String),
    field("topic_id", Uuid),
    field("partitions", Array(AlterShareGroupOffsetsResponsePartition)),
)

RESPONSE = Message(
    "AlterShareGroupOffsetsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
    field("responses", Array(AlterShareGroupOffsetsResponseTopic)),
    versions=(0, 0),
    flexible=0,
)
