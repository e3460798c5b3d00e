"""ExpireDelegationToken (40): expire a delegation token.

v1: the client delays its next request when it is throttled (KIP-219).
"""

from __future__ import annotations

from kbroker.protocol.types import Bytes, Int16, Int32, Int64
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "ExpireDelegationTokenRequest",
    field("hmac", Bytes),
    field("expiry_time_period_ms", Int64),
    versions=(0, 2),
    flexible=2,
)

RESPONSE = Message(
    "ExpireDelegationTokenResponse",
    field("error_code", Int16),
    field("expiry_timestamp_ms", Int64),
    field("throttle_time_ms", Int32),
    versions=(0, 2),
    flexible=2,
)
