"""UpdateMetadata (6): the ZooKeeper controller sends brokers the metadata for their Metadata responses.

v0 carries one address for a broker, v1 a list of endpoints; v5 groups partitions by topic; v7 adds topic ids.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

UpdateMetadataPartitionState = Struct(
    "UpdateMetadataPartitionState",
    field("topic_name", String, until=4),
    field("partition_index", Int32),
    field("controller_epoch", Int32),
    field("leader", Int32),
    field("leader_epoch", Int32),
    field("isr", Array(Int32)),
    field("zk_version", Int32),
    field("replicas", Array(Int32)),
    field("offline_replicas", Array(Int32), since=4),
)

UpdateMetadataTopicState = Struct(
    "UpdateMetadataTopicState",
    field("topic_name", String, since=5),
    field("topic_id", Uuid, since=7),
    field("partition_states", Array(UpdateMetadataPartitionState), since=5),
)

UpdateMetadataEndpoint = Struct(
    "UpdateMetadataEndpoint",
    field("port", Int32, since=1),
    field("host", String, since=1),
    field("listener", String, since=3),
    field("security_protocol", Int16, since=1),
)

UpdateMetadataBroker = Struct(
    "UpdateMetadataBroker",
    field("id", Int32),
    field("v0_host", String, until=0),
    field("v0_port", Int32, until=0),
    field("endpoints", Array(UpdateMetadataEndpoint), since=1),
    field("rack", String, since=2, nullable=2),
)

REQUEST = Message(
    "UpdateMetadataRequest",
    field("controller_id", Int32),
    field("is_k_raft_controller", Bool, since=8),
    field("type", Int8, since=8, tag=0),
    field("controller_epoch", Int32),
    field("broker_epoch", Int64, since=5, default=-1),
    field("ungrouped_partition_states", Array(UpdateMetadataPartitionState), until=4),
    field("topic_states", Array(UpdateMetadataTopicState), since=5),
    field("live_brokers", Array(UpdateMetadataBroker)),
    versions=(0, 8),
    flexible=6,
)

RESPONSE = Message(
    "UpdateMetadataResponse",
    field("error_code", Int16),
    versions=(0, 8),
    flexible=6,
)
