"""StopReplica (5): the ZooKeeper controller stops and optionally deletes replicas of a broker.

v0 lists partitions, v1 and v2 index lists for each topic, v3 a state for each partition with leader epoch.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

StopReplicaPartitionV0 = Struct(
    "StopReplicaPartitionV0",
    field("topic_name", String, until=0),
    field("partition_index", Int32, until=0),
)

StopReplicaTopicV1 = Struct(
    "StopReplicaTopicV1",
    field("name", String, since=1, until=2),
    field("partition_indexes", Array(Int32), since=1, until=2),
)

StopReplicaPartitionState = Struct(
    "StopReplicaPartitionState",
    field("partition_index", Int32, since=3),
    field("leader_epoch", Int32, since=3, default=-1),
    field("delete_partition", Bool, since=3),
)

StopReplicaTopicState = Struct(
    "StopReplicaTopicState",
    field("topic_name", String, since=3),
    field("partition_states", Array(StopReplicaPartitionState), since=3),
)

REQUEST = Message(
    "StopReplicaRequest",
    field("controller_id", Int32),
    field("is_k_raft_controller", Bool, since=4),
    field("controller_epoch", Int32),
    field("broker_epoch", Int64, since=1, default=-1),
    field("delete_partitions", Bool, until=2),
    field("ungrouped_partitions", Array(StopReplicaPartitionV0), until=0),
    field("topics", Array(StopReplicaTopicV1), since=1, until=2),
    field("topic_states", Array(StopReplicaTopicState), since=3),
    versions=(0, 4),
    flexible=2,
)

StopReplicaPartitionError = Struct(
    "StopReplicaPartitionError",
    field("topic_name", String),
    field("partition_index", Int32),
    field("error_code", Int16),
)

RESPONSE = Message(
    "StopReplicaResponse",
    field("error_code", Int16),
    field("partition_errors", Array(StopReplicaPartitionError)),
    versions=(0, 4),
    flexible=2,
)
