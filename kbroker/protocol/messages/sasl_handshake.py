"""SaslHandshake (17): the SASL mechanism of the connection.

v0: raw tokens follow on the connection; v1: tokens are sent in SaslAuthenticate.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "SaslHandshakeRequest",
    field("mechanism", String),
    versions=(0, 1),
)

RESPONSE = Message(
    "SaslHandshakeResponse",
    field("error_code", Int16),
    field("mechanisms", Array(String)),
    versions=(0, 1),
)
