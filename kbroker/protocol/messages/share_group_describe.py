"""ShareGroupDescribe (77): state and members of share groups."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ShareGroupDescribeRequest",
    field("group_ids", Array(String)),
    field("include_authorized_operations", Bool),
    versions=(1, 1),
    flexible=0,
)

TopicPartitions = Struct(
    "TopicPartitions",
    field("topic_id", Uuid),
    field("topic_name", String),
    field("partitions", Array(Int32)),
)

Assignment = Struct(
    "Assignment",
    field("topic_partitions", Array(TopicPartitions)),
)

Member = Struct(
    "Member",
    field("member_id", String),
    field("rack_id", String, nullable=1, default=None),
    field("member_epoch", Int32),
    field("client_id", String),
    field("client_host", String),
    field("subscribed_topic_names", Array(String)),
    field("assignment", Assignment),
)

DescribedGroup = Struct(
    "DescribedGroup",
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("group_id", String),
    field("group_state", String),
    field("group_epoch", Int32),
    field("assignment_epoch", Int32),
    field("assignor_name", String),
    field("members", Array(Member)),
    field("authorized_operations", Int32, default=-0x80000000),
)

RESPONSE = Message(
    "ShareGroupDescribeResponse",
    field("throttle_time_ms", Int32),
    field("groups", Array(DescribedGroup)),
    versions=(1, 1),
    flexible=0,
)
