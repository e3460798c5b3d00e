"""ShareAcknowledge (79): acknowledgements of a share group's records."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

AcknowledgementBatch = Struct(
    "AcknowledgementBatch",
    field("first_offset", Int64),
    field("last_offset", Int64),
    field("acknowledge_types", Array(Int8)),
)

AcknowledgePartition = Struct(
    "AcknowledgePartition",
    field("partition_index", Int32),
    field("acknowledgement_batches", Array(AcknowledgementBatch)),
)

AcknowledgeTopic = Struct(
    "AcknowledgeTopic",
    field("topic_id", Uuid),
    field("partitions", Array(AcknowledgePartition)),
)

REQUEST = Message(
    "ShareAcknowledgeRequest",
    field("group_id", String, nullable=1, default=None),
    field("member_id", String, nullable=1),
    field("share_session_epoch", Int32),
    field("topics", Array(AcknowledgeTopic)),
    versions=(1, 1),
    flexible=0,
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    field("leader_id", Int32),
    field("leader_epoch", Int32),
)

PartitionData = Struct(
    "PartitionData",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("current_leader", LeaderIdAndEpoch),
)

ShareAcknowledgeTopicResponse = Struct(
    "ShareAcknowledgeTopicResponse",
    field("topic_id", Uuid),
    field("partitions", Array(PartitionData)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    field("node_id", Int32),
    field("host", String),
    field("port", Int32),
    field("rack", String, nullable=1, default=None),
)

RESPONSE = Message(
    "ShareAcknowledgeResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("responses", Array(ShareAcknowledgeTopicResponse)),
    field("node_endpoints", Array(NodeEndpoint)),
    versions=(1, 1),
    flexible=0,
)
