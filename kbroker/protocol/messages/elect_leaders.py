"""ElectLeaders (43): elect the preferred leader, or any live replica (unclean).

v0 elects preferred leaders only; v1 has the election type and a top-level error code.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

TopicPartitions = Struct(
    "TopicPartitions",
    field("topic", String),
    field("partitions", Array(Int32)),
)

REQUEST = Message(
    "ElectLeadersRequest",
    field("election_type", Int8, since=1),
    field("topic_partitions", Array(TopicPartitions), nullable=0),
    field("timeout_ms", Int32, default=60000),
    versions=(0, 2),
    flexible=2,
)

PartitionResult = Struct(
    "PartitionResult",
    field("partition_id", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
)

ReplicaElectionResult = Struct(
    "ReplicaElectionResult",
    field("topic", String),
    field("partition_result", Array(PartitionResult)),
)

RESPONSE = Message(
    "ElectLeadersResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16, since=1),
    field("replica_election_results", Array(ReplicaElectionResult)),
    versions=(0, 2),
    flexible=2,
)
