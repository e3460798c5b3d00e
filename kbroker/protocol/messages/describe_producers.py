"""DescribeProducers (61): the active producers of partitions."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

TopicRequest = Struct(
    "TopicRequest",
    field("name", String),
    field("partition_indexes", Array(Int32)),
)

REQUEST = Message(
    "DescribeProducersRequest",
    field("topics", Array(TopicRequest)),
    versions=(0, 0),
    flexible=0,
)

ProducerState = Struct(
    "ProducerState",
    field("producer_id", Int64),
    field("producer_epoch", Int32),
    field("last_sequence", Int32, default=-1),
    field("last_timestamp", Int64, default=-1),
    field("coordinator_epoch", Int32),
    field("current_txn_start_offset", Int64, default=-1),
)

PartitionResponse = Struct(
    "PartitionResponse",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
    field("active_producers", Array(ProducerState)),
)

TopicResponse = Struct(
    "TopicResponse",
    field("name", String),
    field("partitions", Array(PartitionResponse)),
)

RESPONSE = Message(
    "DescribeProducersResponse",
    field("throttle_time_ms", Int32),
    field("topics", Array(TopicResponse)),
    versions=(0, 0),
    flexible=0,
)
