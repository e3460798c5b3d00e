"""JoinGroup (11): a member joins a group of the classic protocol and waits for the others.

v1: a separate rebalance timeout. v4: a first join without a member id receives an id (MEMBER_ID_REQUIRED).
v5: static members. v7: the protocol type in the response. v8: the reason for joining.
v9: whether the leader should skip the assignment.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Bytes, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

JoinGroupRequestProtocol = Struct(
    "JoinGroupRequestProtocol",
    field("name", String),
    field("metadata", Bytes),
)

REQUEST = Message(
    "JoinGroupRequest",
    field("group_id", String),
    field("session_timeout_ms", Int32),
    field("rebalance_timeout_ms", Int32, since=1, default=-1),
    field("member_id", String),
    field("group_instance_id", String, since=5, nullable=5, default=None),
    field("protocol_type", String),
    field("protocols", Array(JoinGroupRequestProtocol)),
    field("reason", String, since=8, nullable=8, default=None),
    versions=(0, 9),
    flexible=6,
)

JoinGroupResponseMember = Struct(
    "JoinGroupResponseMember",
    field("member_id", String),
    field("group_instance_id", String, since=5, nullable=5, default=None),
    field("metadata", Bytes),
)

RESPONSE = Message(
    "JoinGroupResponse",
    field("throttle_time_ms", Int32, since=2),
    field("error_code", Int16),
    field("generation_id", Int32, default=-1),
    field("protocol_type", String, since=7, nullable=7, default=None),
    field("protocol_name", String, nullable=7),
    field("leader", String),
    field("skip_assignment", Bool, since=9),
    field("member_id", String),
    field("members", Array(JoinGroupResponseMember)),
    versions=(0, 9),
    flexible=6,
)
