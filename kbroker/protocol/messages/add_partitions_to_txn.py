"""AddPartitionsToTxn (24): partitions that a transaction will write to.

Up to v3 from producers, one transaction; from v4 on between brokers, many transactions, and verify only.
v5: TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

AddPartitionsToTxnTopic = Struct(
    "AddPartitionsToTxnTopic",
    field("name", String),
    field("partitions", Array(Int32)),
)

AddPartitionsToTxnTransaction = Struct(
    "AddPartitionsToTxnTransaction",
    field("transactional_id", String, since=4),
    field("producer_id", Int64, since=4),
    field("producer_epoch", Int16, since=4),
    field("verify_only", Bool, since=4),
    field("topics", Array(AddPartitionsToTxnTopic), since=4),
)

REQUEST = Message(
    "AddPartitionsToTxnRequest",
    field("transactions", Array(AddPartitionsToTxnTransaction), since=4),
    field("v3_and_below_transactional_id", String, until=3),
    field("v3_and_below_producer_id", Int64, until=3),
    field("v3_and_below_producer_epoch", Int16, until=3),
    field("v3_and_below_topics", Array(AddPartitionsToTxnTopic), until=3),
    versions=(0, 5),
    flexible=3,
)

AddPartitionsToTxnPartitionResult = Struct(
    "AddPartitionsToTxnPartitionResult",
    field("partition_index", Int32),
    field("partition_error_code", Int16),
)

AddPartitionsToTxnTopicResult = Struct(
    "AddPartitionsToTxnTopicResult",
    field("name", String),
    field("results_by_partition", Array(AddPartitionsToTxnPartitionResult)),
)

AddPartitionsToTxnResult = Struct(
    "AddPartitionsToTxnResult",
    field("transactional_id", String, since=4),
    field("topic_results", Array(AddPartitionsToTxnTopicResult), since=4),
)

RESPONSE = Message(
    "AddPartitionsToTxnResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16, since=4),
    field("results_by_transaction", Array(AddPartitionsToTxnResult), since=4),
    field("results_by_topic_v3_and_below", Array(AddPartitionsToTxnTopicResult), until=3),
    versions=(0, 5),
    flexible=3,
)
