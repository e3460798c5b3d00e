"""InitProducerId (22): a producer id and epoch, for idempotence and for transactions.

v3: a producer can request a new epoch of its producer id. v4: PRODUCER_FENCED. v5: TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from kbroker.protocol.types import Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "InitProducerIdRequest",
    field("transactional_id", String, nullable=0),
    field("transaction_timeout_ms", Int32),
    field("producer_id", Int64, since=3, default=-1),
    field("producer_epoch", Int16, since=3, default=-1),
    versions=(0, 5),
    flexible=2,
)

RESPONSE = Message(
    "InitProducerIdResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("producer_id", Int64, default=-1),
    field("producer_epoch", Int16),
    versions=(0, 5),
    flexible=2,
)
