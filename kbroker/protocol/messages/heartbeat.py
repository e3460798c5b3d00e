"""Heartbeat (12): heartbeat of a member of a classic group.

v3: static members.
"""

from __future__ import annotations

from kbroker.protocol.types import Int16, Int32, String
from kbroker.protocol.versions import Message, field

REQUEST = Message(
    "HeartbeatRequest",
    field("group_id", String),
    field("generation_id", Int32),
    field("member_id", String),
    field("group_instance_id", String, since=3, nullable=3, default=None),
    versions=(0, 4),
    flexible=4,
)

RESPONSE = Message(
    "HeartbeatResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16),
    versions=(0, 4),
    flexible=4,
)
