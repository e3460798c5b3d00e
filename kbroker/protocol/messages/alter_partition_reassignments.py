"""AlterPartitionReassignments (45): new replicas for partitions, or null to cancel.

v1: whether the replication factor may change.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

ReassignablePartition = Struct(
    "ReassignablePartition",
    field("partition_index", Int32),
    field("replicas", Array(Int32), nullable=0, default=None),
)

ReassignableTopic = Struct(
    "ReassignableTopic",
    field("name", String),
    field("partitions", Array(ReassignablePartition)),
)

REQUEST = Message(
    "AlterPartitionReassignmentsRequest",
    field("timeout_ms", Int32, default=60000),
    field("allow_replication_factor_change", Bool, since=1, default=True),
    field("topics", Array(ReassignableTopic)),
    versions=(0, 1),
    flexible=0,
)

ReassignablePartitionResponse = Struct(
    "ReassignablePartitionResponse",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
)

ReassignableTopicResponse = Struct(
    "ReassignableTopicResponse",
    field("name", String),
    field("partitions", Array(ReassignablePartitionResponse)),
)

RESPONSE = Message(
    "AlterPartitionReassignmentsResponse",
    field("throttle_time_ms", Int32),
    field("allow_replication_factor_change", Bool, since=1, default=True),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("responses", Array(ReassignableTopicResponse)),
    versions=(0, 1),
    flexible=0,
)
