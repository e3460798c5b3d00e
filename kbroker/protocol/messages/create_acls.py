"""CreateAcls (30): create ACLs.

v1: pattern types. v3: the resource type for users.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

AclCreation = Struct(
    "AclCreation",
    field("resource_type", Int8),
    field("resource_name", String),
    field("resource_pattern_type", Int8, since=1, default=3),
    field("principal", String),
    field("host", String),
    field("operation", Int8),
    field("permission_type", Int8),
)

REQUEST = Message(
    "CreateAclsRequest",
    field("creations", Array(AclCreation)),
    versions=(0, 3),
    flexible=2,
)

AclCreationResult = Struct(
    "AclCreationResult",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
)

RESPONSE = Message(
    "CreateAclsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(AclCreationResult)),
    versions=(0, 3),
    flexible=2,
)
