"""GetTelemetrySubscriptions (71): the metrics that a client should push (KIP-714)."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "GetTelemetrySubscriptionsRequest",
    field("client_instance_id", Uuid),
    versions=(0, 0),
    flexible=0,
)

RESPONSE = Message(
    "GetTelemetrySubscriptionsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("client_instance_id", Uuid),
    field("subscription_id", Int32),
    field("accepted_compression_types", Array(Int8)),
    field("push_interval_ms", Int32),
    field("telemetry_max_bytes", Int32),
    field("delta_temporality", Bool),
    field("requested_metrics", Array(String)),
    versions=(0, 0),
    flexible=0,
)
