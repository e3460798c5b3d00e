"""SaslAuthenticate (36): a SASL token.

v1: the session lifetime.
"""

from __future__ import annotations

from kbroker.protocol.types import Bytes, Int16, Int64, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "SaslAuthenticateRequest",
    field("auth_bytes", Bytes),
    versions=(0, 2),
    flexible=2,
)

RESPONSE = Message(
    "SaslAuthenticateResponse",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("auth_bytes", Bytes),
    field("session_lifetime_ms", Int64, since=1),
    versions=(0, 2),
    flexible=2,
)
