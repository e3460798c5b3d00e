"""ConsumerGroupHeartbeat (68): heartbeat and assignment of a member of a KIP-848 group.

v1: subscription by regular expression; the member generates its id.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

TopicPartitions = Struct(
    "TopicPartitions",
    field("topic_id", Uuid),
    field("partitions", Array(Int32)),
)

REQUEST = Message(
    "ConsumerGroupHeartbeatRequest",
    field("group_id", String),
    field("member_id", String),
    field("member_epoch", Int32),
    field("instance_id", String, nullable=0, default=None),
    field("rack_id", String, nullable=0, default=None),
    field("rebalance_timeout_ms", Int32, default=-1),
    field("subscribed_topic_names", Array(String), nullable=0, default=None),
    field("subscribed_topic_regex", String, since=1, nullable=1, default=None),
    field("server_assignor", String, nullable=0, default=None),
    field("topic_partitions", Array(TopicPartitions), nullable=0, default=None),
    versions=(0, 1),
    flexible=0,
)

Assignment = Struct(
    "Assignment",
    field("topic_partitions", Array(TopicPartitions)),
)

RESPONSE = Message(
    "ConsumerGroupHeartbeatResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
    field("member_id", String, nullable=0, default=None),
    field("member_epoch", Int32),
    field("heartbeat_interval_ms", Int32),
    field("assignment", Assignment, nullable=0, default=None),
    versions=(0, 1),
    flexible=0,
)
