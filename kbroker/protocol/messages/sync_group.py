"""SyncGroup (14): the group leader sends all assignments; every member receives its own.

v3: static members. v5: protocol type and name, to detect inconsistent members.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

SyncGroupRequestAssignment = Struct(
    "SyncGroupRequestAssignment",
    field("member_id", String),
    field("assignment", Bytes),
)

REQUEST = Message(
    "SyncGroupRequest",
    field("group_id", String),
    field("generation_id", Int32),
    field("member_id", String),
    field("group_instance_id", String, since=3, nullable=3, default=None),
    field("protocol_type", String, since=5, nullable=5, default=None),
    field("protocol_name", String, since=5, nullable=5, default=None),
    field("assignments", Array(SyncGroupRequestAssignment)),
    versions=(0, 5),
    flexible=4,
)

RESPONSE = Message(
    "SyncGroupResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16),
    field("protocol_type", String, since=5, nullable=5, default=None),
    field("protocol_name", String, since=5, nullable=5, default=None),
    field("assignment", Bytes),
    versions=(0, 5),
    flexible=4,
)
