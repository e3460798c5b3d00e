"""ListPartitionReassignments (46): reassignments under way."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

ListPartitionReassignmentsTopics = Struct(
    "ListPartitionReassignmentsTopics",
    field("name", String),
    field("partition_indexes", Array(Int32)),
)

REQUEST = Message(
    "ListPartitionReassignmentsRequest",
    field("timeout_ms", Int32, default=60000),
    field("topics", Array(ListPartitionReassignmentsTopics), nullable=0, default=None),
    versions=(0, 0),
    flexible=0,
)

OngoingPartitionReassignment = Struct(
    "OngoingPartitionReassignment",
    field("partition_index", Int32),
    field("replicas", Array(Int32)),
    field("adding_replicas", Array(Int32)),
    field("removing_replicas", Array(Int32)),
)

OngoingTopicReassignment = Struct(
    "OngoingTopicReassignment",
    field("name", String),
    field("partitions", Array(OngoingPartitionReassignment)),
)

RESPONSE = Message(
    "ListPartitionReassignmentsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("topics", Array(OngoingTopicReassignment)),
    versions=(0, 0),
    flexible=0,
)
