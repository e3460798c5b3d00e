"""DeleteAcls (31): delete the ACLs that match filters.

v1: pattern types. v3: the resource type for users.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

DeleteAclsFilter = Struct(
    "DeleteAclsFilter",
    field("resource_type_filter", Int8),
    field("resource_name_filter", String, nullable=0),
    field("pattern_type_filter", Int8, since=1, default=3),
    field("principal_filter", String, nullable=0),
    field("host_filter", String, nullable=0),
    field("operation", Int8),
    field("permission_type", Int8),
)

REQUEST = Message(
    "DeleteAclsRequest",
    field("filters", Array(DeleteAclsFilter)),
    versions=(0, 3),
    flexible=2,
)

DeleteAclsMatchingAcl = Struct(
    "DeleteAclsMatchingAcl",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("resource_type", Int8),
    field("resource_name", String),
    field("pattern_type", Int8, since=1, default=3),
    field("principal", String),
    field("host", String),
    field("operation", Int8),
    field("permission_type", Int8),
)

DeleteAclsFilterResult = Struct(
    "DeleteAclsFilterResult",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("matching_acls", Array(DeleteAclsMatchingAcl)),
)

RESPONSE = Message(
    "DeleteAclsResponse",
    field("throttle_time_ms", Int32),
    field("filter_results", Array(DeleteAclsFilterResult)),
    versions=(0, 3),
    flexible=2,
)
