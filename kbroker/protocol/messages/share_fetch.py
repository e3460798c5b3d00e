"""ShareFetch (78): records acquired by a member of a share group, with acknowledgements."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, Records, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

AcknowledgementBatch = Struct(
    "AcknowledgementBatch",
    field("first_offset", Int64),
    field("last_offset", Int64),
    field("acknowledge_types", Array(Int8)),
)

FetchPartition = Struct(
    "FetchPartition",
    field("partition_index", Int32),
    field("acknowledgement_batches", Array(AcknowledgementBatch)),
)

FetchTopic = Struct(
    "FetchTopic",
    field("topic_id", Uuid),
    field("partitions", Array(FetchPartition)),
)

ForgottenTopic = Struct(
    "ForgottenTopic",
    field("topic_id", Uuid),
    field("partitions", Array(Int32)),
)

REQUEST = Message(
    "ShareFetchRequest",
    field("group_id", String, nullable=1, default=None),
    field("member_id", String, nullable=1),
    field("share_session_epoch", Int32),
    field("max_wait_ms", Int32),
    field("min_bytes", Int32),
    field("max_bytes", Int32, default=0x7FFFFFFF),
    field("max_records", Int32),
    field("batch_size", Int32),
    field("topics", Array(FetchTopic)),
    field("forgotten_topics_data", Array(ForgottenTopic)),
    versions=(1, 1),
    flexible=0,
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    field("leader_id", Int32),
    field("leader_epoch", Int32),
)

AcquiredRecords = Struct(
    "AcquiredRecords",
    field("first_offset", Int64),
    field("last_offset", Int64),
    field("delivery_count", Int16),
)

PartitionData = Struct(
    "PartitionData",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("acknowledge_error_code", Int16),
    field("acknowledge_error_message", String, nullable=1, default=None),
    field("current_leader", LeaderIdAndEpoch),
    field("records", Records),
    field("acquired_records", Array(AcquiredRecords)),
)

ShareFetchableTopicResponse = Struct(
    "ShareFetchableTopicResponse",
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
    "ShareFetchResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=1, default=None),
    field("acquisition_lock_timeout_ms", Int32),
    field("responses", Array(ShareFetchableTopicResponse)),
    field("node_endpoints", Array(NodeEndpoint)),
    versions=(1, 1),
    flexible=0,
)
