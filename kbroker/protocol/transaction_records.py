"""Keys and values of `__transaction_state`: the state of each transactional id.

An INT16 precedes both: for a key its record type (always 0), for a value its version.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

TRANSACTION_LOG_KEY = Message(
    "TransactionLogKey",
    field("transactional_id", String),
    versions=(0, 0),
)

PartitionsSchema = Struct(
    "PartitionsSchema",
    field("topic", String),
    field("partition_ids", Array(Int32)),
)

TRANSACTION_LOG_VALUE = Message(
    "TransactionLogValue",
    field("producer_id", Int64),
    field("previous_producer_id", Int64, since=1, tag=0, default=-1),
    field("next_producer_id", Int64, since=1, tag=1, default=-1),
    field("producer_epoch", Int16),
    field("next_producer_epoch", Int16, since=1, tag=3, default=-1),
    field("transaction_timeout_ms", Int32),
    field("transaction_status", Int8),
    field("transaction_partitions", Array(PartitionsSchema), nullable=0),
    field("transaction_last_update_timestamp_ms", Int64),
    field("transaction_start_timestamp_ms", Int64),
    field("client_transaction_version", Int16, since=1, tag=2),
    versions=(0, 1),
    flexible=1,
)
