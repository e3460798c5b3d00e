"""CreateDelegationToken (38): create a delegation token.

v3: a token for another owner.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

CreatableRenewers = Struct(
    "CreatableRenewers",
    field("principal_type", String),
    field("principal_name", String),
)

REQUEST = Message(
    "CreateDelegationTokenRequest",
    field("owner_principal_type", String, since=3, nullable=3),
    field("owner_principal_name", String, since=3, nullable=3),
    field("renewers", Array(CreatableRenewers)),
    field("max_lifetime_ms", Int64),
    versions=(0, 3),
    flexible=2,
)

RESPONSE = Message(
    "CreateDelegationTokenResponse",
    field("error_code", Int16),
    field("principal_type", String),
    field("principal_name", String),
    field("token_requester_principal_type", String, since=3),
    field("token_requester_principal_name", String, since=3),
    field("issue_timestamp_ms", Int64),
    field("expiry_timestamp_ms", Int64),
    field("max_timestamp_ms", Int64),
    field("token_id", String),
    field("hmac", Bytes),
    field("throttle_time_ms", Int32),
    versions=(0, 3),
    flexible=2,
)
