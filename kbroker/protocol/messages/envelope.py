"""Envelope (58): a client's request, with header and body, that a broker forwards to the controller."""

from __future__ import annotations

from kbroker.protocol.types import Bool, Bytes, Int16, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "EnvelopeRequest",
    field("request_data", Bytes),
    field("request_principal", Bytes, nullable=0),
    field("client_host_address", Bytes),
    versions=(0, 0),
    flexible=0,
)

# What `request_principal` holds, after two bytes with the version: Kafka's DefaultKafkaPrincipalBuilder.
PRINCIPAL = Message(
    "DefaultPrincipalData",
    field("type", String),
    field("name", String),
    field("token_authenticated", Bool),
    versions=(0, 0),
    flexible=0,
)

RESPONSE = Message(
    "EnvelopeResponse",
    field("response_data", Bytes, nullable=0, default=None),
    field("error_code", Int16),
    versions=(0, 0),
    flexible=0,
)
