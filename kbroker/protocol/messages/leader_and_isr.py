"""LeaderAndIsr (4): the ZooKeeper controller makes a broker leader or follower of partitions.

v0 and v1 list partitions without grouping; v2 groups them by topic and has the broker epoch.
v5: topic ids, and whether the request is full or incremental. v6: leader recovery state. v7: whether the
  controller is a KRaft controller.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

LeaderAndIsrPartitionState = Struct(
    "LeaderAndIsrPartitionState",
    field("topic_name", String, until=1),
    field("partition_index", Int32),
    field("controller_epoch", Int32),
    field("leader", Int32),
    field("leader_epoch", Int32),
    field("isr", Array(Int32)),
    field("partition_epoch", Int32),
    field("replicas", Array(Int32)),
    field("adding_replicas", Array(Int32), since=3),
    field("removing_replicas", Array(Int32), since=3),
    field("is_new", Bool, since=1),
    field("leader_recovery_state", Int8, since=6),
)

LeaderAndIsrTopicState = Struct(
    "LeaderAndIsrTopicState",
    field("topic_name", String, since=2),
    field("topic_id", Uuid, since=5),
    field("partition_states", Array(LeaderAndIsrPartitionState), since=2),
)

LeaderAndIsrLiveLeader = Struct(
    "LeaderAndIsrLiveLeader",
    field("broker_id", Int32),
    field("host_name", String),
    field("port", Int32),
)

REQUEST = Message(
    "LeaderAndIsrRequest",
    field("controller_id", Int32),
    field("is_k_raft_controller", Bool, since=7),
    field("controller_epoch", Int32),
    field("broker_epoch", Int64, since=2, default=-1),
    field("type", Int8, since=5),
    field("ungrouped_partition_states", Array(LeaderAndIsrPartitionState), until=1),
    field("topic_states", Array(LeaderAndIsrTopicState), since=2),
    field("live_leaders", Array(LeaderAndIsrLiveLeader)),
    versions=(0, 7),
    flexible=4,
)

LeaderAndIsrPartitionError = Struct(
    "LeaderAndIsrPartitionError",
    field("topic_name", String, until=4),
    field("partition_index", Int32),
    field("error_code", Int16),
)

LeaderAndIsrTopicError = Struct(
    "LeaderAndIsrTopicError",
    field("topic_id", Uuid, since=5),
    field("partition_errors", Array(LeaderAndIsrPartitionError), since=5),
)

RESPONSE = Message(
    "LeaderAndIsrResponse",
    field("error_code", Int16),
    field("partition_errors", Array(LeaderAndIsrPartitionError), until=4),
    field("topics", Array(LeaderAndIsrTopicError), since=5),
    versions=(0, 7),
    flexible=4,
)
