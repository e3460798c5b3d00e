"""OffsetDelete (47): delete committed offsets of a group for partitions without a subscriber."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

OffsetDeleteRequestPartition = Struct(
    "OffsetDeleteRequestPartition",
    field("partition_index", Int32),
)

OffsetDeleteRequestTopic = Struct(
    "OffsetDeleteRequestTopic",
    field("name", String),
    field("partitions", Array(OffsetDeleteRequestPartition)),
)

REQUEST = Message(
    "OffsetDeleteRequest",
    field("group_id", String),
    field("topics", Array(OffsetDeleteRequestTopic)),
    versions=(0, 0),
)

OffsetDeleteResponsePartition = Struct(
    "OffsetDeleteResponsePartition",
    field("partition_index", Int32),
    field("error_code", Int16),
)

OffsetDeleteResponseTopic = Struct(
    "OffsetDeleteResponseTopic",
    field("name", String),
    field("partitions", Array(OffsetDeleteResponsePartition)),
)

RESPONSE = Message(
    "OffsetDeleteResponse",
    field("error_code", Int16),
    field("throttle_time_ms", Int32),
    field("topics", Array(OffsetDeleteResponseTopic)),
    versions=(0, 0),
)
