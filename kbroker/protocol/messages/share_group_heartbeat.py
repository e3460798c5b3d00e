"""ShareGroupHeartbeat (76): heartbeat and assignment of a member of a share group."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ShareGroupHeartbeatRequest",
    field("group_id", String),
    field("member_id", String),
    field("member_epoch", Int32),
    field("rack_id", String, nullable=1, default=None),
    field("subscribed_topic_names", Array(String), nullable=1, default=None),
    versions=(1, 1),
    flexible=0,
)

TopicPartitions = Struct(
    "TopicPartitions",
    field("topic_id", Uuid),
    field("partitions", Array(Int32)),
)

Assignment = Struct(
    "Assignment",
    field("topic_partitions", Array(TopicPartitions)),
)

RESPONSE = Message(
    "ShareGroupHeartbeatResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("member_id", String, nullable=1, default=None),
    field("member_epoch", Int32),
    field("heartbeat_interval_ms", Int32),
    field("assignment", Assignment, nullable=1, default=None),
    versions=(1, 1),
    flexible=0,
)
