"""Messages of the consumers in a classic group: subscriptions and assignments.

Opaque to the broker, which reads them only to describe groups and to convert groups between protocols. An INT16 version
precedes each message.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int32, String
from kbroker.protocol.versions import Message, Struct, field

TopicPartition = Struct(
    "TopicPartition",
    field("topic", String, since=1),
    field("partitions", Array(Int32), since=1),
)

SUBSCRIPTION = Message(
    "ConsumerProtocolSubscription",
    field("topics", Array(String)),
    field("user_data", Bytes, nullable=0, default=None),
    field("owned_partitions", Array(TopicPartition), since=1),
    field("generation_id", Int32, since=2, default=-1),
    field("rack_id", String, since=3, nullable=3, default=None),
    versions=(0, 3),
)

TopicPartitionAssignment = Struct(
    "TopicPartition",
    field("topic", String),
    field("partitions", Array(Int32)),
)

ASSIGNMENT = Message(
    "ConsumerProtocolAssignment",
    field("assigned_partitions", Array(TopicPartitionAssignment)),
    field("user_data", Bytes, nullable=0, default=None),
    versions=(0, 3),
)
