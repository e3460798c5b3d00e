"""AllocateProducerIds (67): a block of producer ids, from the controller to a broker."""

from __future__ import annotations

from kbroker.protocol.types import Int16, Int32, Int64
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "AllocateProducerIdsRequest",
    field("broker_id", Int32),
    field("broker_epoch", Int64, default=-1),
    versions=(0, 0),
    flexible=0,
)

RESPONSE = Message(
    "AllocateProducerIdsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("producer_id_start", Int64),
    field("producer_id_len", Int32),
    versions=(0, 0),
    flexible=0,
)
