"""DescribeTransactions (65): state of transactions by id."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "DescribeTransactionsRequest",
    field("transactional_ids", Array(String)),
    versions=(0, 0),
    flexible=0,
)

TopicData = Struct(
    "TopicData",
    field("topic", String),
    field("partitions", Array(Int32)),
)

TransactionState = Struct(
    "TransactionState",
    field("error_code", Int16),
    field("transactional_id", String),
    field("transaction_state", String),
    field("transaction_timeout_ms", Int32),
    field("transaction_start_time_ms", Int64),
    field("producer_id", Int64),
    field("producer_epoch", Int16),
    field("topics", Array(TopicData)),
)

RESPONSE = Message(
    "DescribeTransactionsResponse",
    field("throttle_time_ms", Int32),
    field("transaction_states", Array(TransactionState)),
    versions=(0, 0),
    flexible=0,
)
