"""LeaveGroup (13): members leave a group.

v0 to v2: one member; from v3 on a list, static ones by their instance id. v5: the reason.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

MemberIdentity = Struct(
    "MemberIdentity",
    field("member_id", String, since=3),
    field("group_instance_id", String, since=3, nullable=3, default=None),
    field("reason", String, since=5, nullable=5, default=None),
)

REQUEST = Message(
    "LeaveGroupRequest",
    field("group_id", String),
    field("member_id", String, until=2),
    field("members", Array(MemberIdentity), since=3),
    versions=(0, 5),
    flexible=4,
)

MemberResponse = Struct(
    "MemberResponse",
    field("member_id", String, since=3),
    field("group_instance_id", String, since=3, nullable=3),
    field("error_code", Int16, since=3),
)

RESPONSE = Message(
    "LeaveGroupResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16),
    field("members", Array(MemberResponse), since=3),
    versions=(0, 5),
    flexible=4,
)
