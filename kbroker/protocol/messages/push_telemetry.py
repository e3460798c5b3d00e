"""PushTelemetry (72): metrics from a client (KIP-714)."""

from __future__ import annotations

from kbroker.protocol.types import Bool, Bytes, Int8, Int16, Int32, Uuid
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "PushTelemetryRequest",
    field("client_instance_id", Uuid),
    field("subscription_id", Int32),
    field("terminating", Bool),
    field("compression_type", Int8),
    field("metrics", Bytes),
    versions=(0, 0),
    flexible=0,
)

RESPONSE = Message(
    "PushTelemetryResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    versions=(0, 0),
    flexible=0,
)
