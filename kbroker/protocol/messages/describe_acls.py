"""DescribeAcls (29): ACLs that match a filter.

v1: pattern types. v3: the resource type for users.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "DescribeAclsRequest",
    field("resource_type_filter", Int8),
    field("resource_name_filter", String, nullable=0),
    field("pattern_type_filter", Int8, since=1, default=3),
    field("principal_filter", String, nullable=0),
    field("host_filter", String, nullable=0),
    field("operation", Int8),
    field("permission_type", Int8),
    versions=(0, 3),
    flexible=2,
)

AclDescription = Struct(
    "AclDescription",
    field("principal", String),
    field("host", String),
    field("operation", Int8),
    field("permission_type", Int8),
)

DescribeAclsResource = Struct(
    "DescribeAclsResource",
    field("resource_type", Int8),
    field("resource_name", String),
    field("pattern_type", Int8, since=1, default=3),
    field("acls", Array(AclDescription)),
)

RESPONSE = Message(
    "DescribeAclsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("resources", Array(DescribeAclsResource)),
    versions=(0, 3),
    flexible=2,
)
