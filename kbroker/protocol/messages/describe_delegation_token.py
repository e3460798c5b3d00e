"""DescribeDelegationToken (41): delegation tokens of owners.

v3: the requester of the token.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

DescribeDelegationTokenOwner = Struct(
    "DescribeDelegationTokenOwner",
    field("principal_type", String),
    field("principal_name", String),
)

REQUEST = Message(
    "DescribeDelegationTokenRequest",
    field("owners", Array(DescribeDelegationTokenOwner), nullable=0),
    versions=(0, 3),
    flexible=2,
)

DescribedDelegationTokenRenewer = Struct(
    "DescribedDelegationTokenRenewer",
    field("principal_type", String),
    field("principal_name", String),
)

DescribedDelegationToken = Struct(
    "DescribedDelegationToken",
    field("principal_type", String),
    field("principal_name", String),
    field("token_requester_principal_type", String, since=3),
    field("token_requester_principal_name", String, since=3),
    field("issue_timestamp", Int64),
    field("expiry_timestamp", Int64),
    field("max_timestamp", Int64),
    field("token_id", String),
    field("hmac", Bytes),
    field("renewers", Array(DescribedDelegationTokenRenewer)),
)

RESPONSE = Message(
    "DescribeDelegationTokenResponse",
    field("error_code", Int16),
    field("tokens", Array(DescribedDelegationToken)),
    field("throttle_time_ms", Int32),
    versions=(0, 3),
    flexible=2,
)
