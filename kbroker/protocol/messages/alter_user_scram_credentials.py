"""AlterUserScramCredentials (51): set or delete SCRAM credentials."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

ScramCredentialDeletion = Struct(
    "ScramCredentialDeletion",
    field("name", String),
    field("mechanism", Int8),
)

ScramCredentialUpsertion = Struct(
    "ScramCredentialUpsertion",
    field("name", String),
    field("mechanism", Int8),
    field("iterations", Int32),
    field("salt", Bytes),
    field("salted_password", Bytes),
)

REQUEST = Message(
    "AlterUserScramCredentialsRequest",
    field("deletions", Array(ScramCredentialDeletion)),
    field("upsertions", Array(ScramCredentialUpsertion)),
    versions=(0, 0),
    flexible=0,
)

AlterUserScramCredentialsResult = Struct(
    "AlterUserScramCredentialsResult",
    field("user", String),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
)

RESPONSE = Message(
    "AlterUserScramCredentialsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(AlterUserScramCredentialsResult)),
    versions=(0, 0),
    flexible=0,
)
