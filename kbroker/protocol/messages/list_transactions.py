"""ListTransactions (66): the transactions that a broker coordinates.

v1: filter by duration. v2: by a pattern of ids.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ListTransactionsRequest",
    field("state_filters", Array(String)),
    field("producer_id_filters", Array(Int64)),
    field("duration_filter", Int64, since=1, default=-1),
    field("transactional_id_pattern", String, since=2, nullable=2, default=None),
    versions=(0, 2),
    flexible=0,
)

TransactionState = Struct(
    "TransactionState",
    field("transactional_id", String),
    field("producer_id", Int64),
    field("transaction_state", String),
)

RESPONSE = Message(
    "ListTransactionsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("unknown_state_filters", Array(String)),
    field("transaction_states", Array(TransactionState)),
    versions=(0, 2),
    flexible=0,
)
