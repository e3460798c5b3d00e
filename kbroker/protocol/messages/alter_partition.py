"""AlterPartition (56): a leader proposes a new ISR to the controller.

v1: leader recovery state. v2: topics by id. v3: the broker epoch of each member; INELIGIBLE_REPLICA.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

BrokerState = Struct(
    "BrokerState",
    field("broker_id", Int32, since=3),
    field("broker_epoch", Int64, since=3, default=-1),
)

PartitionData = Struct(
    "PartitionData",
    field("partition_index", Int32),
    field("leader_epoch", Int32),
    field("new_isr", Array(Int32), until=2),
    field("new_isr_with_epochs", Array(BrokerState), since=3),
    field("leader_recovery_state", Int8, since=1),
    field("partition_epoch", Int32),
)

TopicData = Struct(
    "TopicData",
    field("topic_name", String, until=1),
    field("topic_id", Uuid, since=2),
    field("partitions", Array(PartitionData)),
)

REQUEST = Message(
    "AlterPartitionRequest",
    field("broker_id", Int32),
    field("broker_epoch", Int64, default=-1),
    field("topics", Array(TopicData)),
    versions=(0, 3),
    flexible=0,
)

PartitionDataResponse = Struct(
    "PartitionData",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("leader_id", Int32),
    field("leader_epoch", Int32),
    field("isr", Array(Int32)),
    field("leader_recovery_state", Int8, since=1),
    field("partition_epoch", Int32),
)

TopicDataResponse = Struct(
    "TopicData",
    field("topic_name", String, until=1),
    field("topic_id", Uuid, since=2),
    field("partitions", Array(PartitionDataResponse)),
)

RESPONSE = Message(
    "AlterPartitionResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("topics", Array(TopicDataResponse)),
    versions=(0, 3),
    flexible=0,
)
