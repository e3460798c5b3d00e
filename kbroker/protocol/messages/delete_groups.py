"""DeleteGroups (42): delete groups that are empty.

v1: the client delays its next request when it is throttled (KIP-219).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "DeleteGroupsRequest",
    field("groups_names", Array(String)),
    versions=(0, 2),
    flexible=2,
)

DeletableGroupResult = Struct(
    "DeletableGroupResult",
    field("group_id", String),
    field("error_code", Int16),
)

RESPONSE = Message(
    "DeleteGroupsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(DeletableGroupResult)),
    versions=(0, 2),
    flexible=2,
)
