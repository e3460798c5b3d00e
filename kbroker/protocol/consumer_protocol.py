"""What consumers tell each other through a classic group: subscriptions and assignments.

Opaque to a broker, which reads them only to describe groups and to move between group protocols. On the wire an INT16
version precedes each.
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
