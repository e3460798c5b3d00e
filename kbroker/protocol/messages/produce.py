"""Produce (0): records from a producer, appended to the logs of their partitions.

v2: batches of magic 1, whose timestamps the broker may set.
v3: batches of magic 2 only, one for each partition; transactions.
v4: the client knows KAFKA_STORAGE_ERROR.
v7: zstd is allowed.
v11: the client knows TRANSACTION_ABORTABLE.
v12: also adds the partition to the transaction (KIP-890); requires transaction.version 2.
v13: topics are named by id; UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, Records, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

PartitionProduceData = Struct(
    "PartitionProduceData",
    field("index", Int32),
    field("records", Records, nullable=0),
)

TopicProduceData = Struct(
    "TopicProduceData",
    field("name", String, until=12),
    field("topic_id", Uuid, since=13),
    field("partition_data", Array(PartitionProduceData)),
)

REQUEST = Message(
    "ProduceRequest",
    field("transactional_id", String, since=3, nullable=3, default=None),
    field("acks", Int16),
    field("timeout_ms", Int32),
    field("topic_data", Array(TopicProduceData)),
    versions=(0, 13),
    flexible=9,
)

BatchIndexAndErrorMessage = Struct(
    "BatchIndexAndErrorMessage",
    field("batch_index", Int32, since=8),
    field("batch_index_error_message", String, since=8, nullable=8, default=None),
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    field("leader_id", Int32, since=10, default=-1),
    field("leader_epoch", Int32, since=10, default=-1),
)

PartitionProduceResponse = Struct(
    "PartitionProduceResponse",
    field("index", Int32),
    field("error_code", Int16),
    field("base_offset", Int64),
    field("log_append_time_ms", Int64, since=2, default=-1),
    field("log_start_offset", Int64, since=5, default=-1),
    field("record_errors", Array(BatchIndexAndErrorMessage), since=8),
    field("error_message", String, since=8, nullable=8, default=None),
    field("current_leader", LeaderIdAndEpoch, since=10, tag=0),
)

TopicProduceResponse = Struct(
    "TopicProduceResponse",
    field("name", String, until=12),
    field("topic_id", Uuid, since=13),
    field("partition_responses", Array(PartitionProduceResponse)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    field("node_id", Int32, since=10),
    field("host", String, since=10),
    field("port", Int32, since=10),
    field("rack", String, since=10, nullable=10, default=None),
)

RESPONSE = Message(
    "ProduceResponse",
    field("responses", Array(TopicProduceResponse)),
    field("throttle_time_ms", Int32, since=1),
    field("node_endpoints", Array(NodeEndpoint), since=10, tag=0),
    versions=(0, 13),
    flexible=9,
)
