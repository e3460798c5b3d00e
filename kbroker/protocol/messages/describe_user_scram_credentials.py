"""DescribeUserScramCredentials (50): SCRAM credentials of users, without the secrets."""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

UserName = Struct(
    "UserName",
    field("name", String),
)

REQUEST = Message(
    "DescribeUserScramCredentialsRequest",
    field("users", Array(UserName), nullable=0),
    versions=(0, 0),
    flexible=0,
)

CredentialInfo = Struct(
    "CredentialInfo",
    field("mechanism", Int8),
    field("iterations", Int32),
)

DescribeUserScramCredentialsResult = Struct(
    "DescribeUserScramCredentialsResult",
    field("user", String),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("credential_infos", Array(CredentialInfo)),
)

RESPONSE = Message(
    "DescribeUserScramCredentialsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("results", Array(DescribeUserScramCredentialsResult)),
    versions=(0, 0),
    flexible=0,
)
