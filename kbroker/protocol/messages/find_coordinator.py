"""FindCoordinator (10): the coordinator of a group, a transactional id or a share partition.

v1: key types. v4: several keys in one request. v5: the client knows TRANSACTION_ABORTABLE. v6: share partitions.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "FindCoordinatorRequest",
    field("key", String, until=3),
    field("key_type", Int8, since=1),
    field("coordinator_keys", Array(String), since=4),
    versions=(0, 6),
    flexible=3,
)

Coordinator = Struct(
    "Coordinator",
    field("key", String, since=4),
    field("node_id", Int32, since=4),
    field("host", String, since=4),
    field("port", Int32, since=4),
    field("error_code", Int16, since=4),
    field("error_message", String, since=4, nullable=4),
)

RESPONSE = Message(
    "FindCoordinatorResponse",
    field("throttle_time_ms", Int32, since=1),
    field("error_code", Int16, until=3),
    field("error_message", String, since=1, until=3, nullable=1),
    field("node_id", Int32, until=3),
    field("host", String, until=3),
    field("port", Int32, until=3),
    field("coordinators", Array(Coordinator), since=4),
    versions=(0, 6),
    flexible=3,
)
