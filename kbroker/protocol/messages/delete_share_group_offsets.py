"""DeleteShareGroupOffsets (92): delete start offsets of share groups."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

DeleteShareGroupOffsetsRequestTopic = Struct(
    "DeleteShareGroupOffsetsRequestTopic",
    field("topic_name", String),
)

REQUEST = Message(
    "DeleteShareGroupOffsetsRequest",
    field("group_id", String),
    field("topics", Array(DeleteShareGroupOffsetsRequestTopic)),
    versions=(0, 0),
    flexible=0,
)

DeleteShareGroupOffsetsResponseTopic = Struct(
    "DeleteShareGroupOffsetsResponseTopic",
    field("topic_name", String),
    field("topic_id", Uuid),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
)

RESPONSE = Message(
    "DeleteShareGroupOffsetsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
    field("responses", Array(DeleteShareGroupOffsetsResponseTopic)),
    versions=(0, 0),
    flexible=0,
)
