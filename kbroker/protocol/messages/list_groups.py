"""ListGroups (16): the groups that a broker coordinates.

v4: filter and answer by state. v5: by type.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ListGroupsRequest",
    field("states_filter", Array(String), since=4),
    field("types_filter", Array(String), since=5),
    versions=(0, 5),
    flexible=3,
)

ListedGroup = Struct(
    "ListedGroup",
    field("group_id", String),
    field("protocol_type", String),
    field("group_state", String, since=4),
    field("group_type", String, since=5),
)

RESPONSE = Message(
    "ListGroupsResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16),
    field("groups", Array(ListedGroup)),
    versions=(0, 5),
    flexible=3,
)
