"""AddOffsetsToTxn (25): the group whose offsets a transaction will commit.

v2: PRODUCER_FENCED. v4: TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from kbroker.protocol.types import Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "AddOffsetsToTxnRequest",
    field("transactional_id", String),
    field("producer_id", Int64),
    field("producer_epoch", Int16),
    field("group_id", String),
    versions=(0, 4),
    flexible=3,
)

RESPONSE = Message(
    "AddOffsetsToTxnResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    versions=(0, 4),
    flexible=3,
)
