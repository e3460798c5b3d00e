"""EndTxn (26): commit or abort a transaction.

v2: PRODUCER_FENCED. v4: TRANSACTION_ABORTABLE. v5: the producer epoch is incremented for each transaction and returned
  (KIP-890).
"""

from __future__ import annotations

from kbroker.protocol.types import Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "EndTxnRequest",
    field("transactional_id", String),
    field("producer_id", Int64),
    field("producer_epoch", Int16),
    field("committed", Bool),
    versions=(0, 5),
    flexible=3,
)

RESPONSE = Message(
    "EndTxnResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("producer_id", Int64, since=5, default=-1),
    field("producer_epoch", Int16, since=5, default=-1),
    versions=(0, 5),
    flexible=3,
)
