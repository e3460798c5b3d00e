"""ControlledShutdown (7): a broker asks the ZooKeeper controller to move its leaderships before it shuts down.

v0 has a request header without client id. v2: the broker epoch fences requests from before a restart.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ControlledShutdownRequest",
    field("broker_id", Int32),
    field("broker_epoch", Int64, since=2, default=-1),
    versions=(0, 3),
    flexible=3,
)

RemainingPartition = Struct(
    "RemainingPartition",
    field("topic_name", String),
    field("partition_index", Int32),
)

RESPONSE = Message(
    "ControlledShutdownResponse",
    field("error_code", Int16),
    field("remaining_partitions", Array(RemainingPartition)),
    versions=(0, 3),
    flexible=3,
)
