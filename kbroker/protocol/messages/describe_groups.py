"""DescribeGroups (15): state and members of groups.

v3: authorized operations. v4: static members. v6: an error message, and GROUP_ID_NOT_FOUND instead of the state Dead.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Bytes, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "DescribeGroupsRequest",
    field("groups", Array(String)),
    field("include_authorized_operations", Bool, since=3),
    versions=(0, 6),
    flexible=5,
)

DescribedGroupMember = Struct(
    "DescribedGroupMember",
    field("member_id", String),
    field("group_instance_id", String, since=4, nullable=4, default=None),
    field("client_id", String),
    field("client_host", String),
    field("member_metadata", Bytes),
    field("member_assignment", Bytes),
)

DescribedGroup = Struct(
    "DescribedGroup",
    field("error_code", Int16),
    field("error_message", String, since=6, nullable=6, default=None),
    field("group_id", String),
    field("group_state", String),
    field("protocol_type", String),
    field("protocol_data", String),
    field("members", Array(DescribedGroupMember)),
    field("authorized_operations", Int32, since=3, default=-0x80000000),
)

RESPONSE = Message(
    "DescribeGroupsResponse",
    field("throttle_time_ms", Int32, since=1),
    field("groups", Array(DescribedGroup)),
    versions=(0, 6),
    flexible=5,
)
