"""OffsetForLeaderEpoch (23): the end offset of a leader epoch, to find the point where two logs diverge.

v2: the current leader epoch, for fencing. v3: the replica id of followers; -2 is a debugging consumer.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

OffsetForLeaderPartition = Struct(
    "OffsetForLeaderPartition",
    field("partition", Int32),
    field("current_leader_epoch", Int32, since=2, default=-1),
    field("leader_epoch", Int32),
)

OffsetForLeaderTopic = Struct(
    "OffsetForLeaderTopic",
    field("topic", String),
    field("partitions", Array(OffsetForLeaderPartition)),
)

REQUEST = Message(
    "OffsetForLeaderEpochRequest",
    field("replica_id", Int32, since=3, default=-2),
    field("topics", Array(OffsetForLeaderTopic)),
    versions=(0, 4),
    flexible=4,
)

EpochEndOffset = Struct(
    "EpochEndOffset",
    field("error_code", Int16),
    field("partition", Int32),
    field("leader_epoch", Int32, since=1, default=-1),
    field("end_offset", Int64, default=-1),
)

OffsetForLeaderTopicResult = Struct(
    "OffsetForLeaderTopicResult",
    field("topic", String),
    field("partitions", Array(EpochEndOffset)),
)

RESPONSE = Message(
    "OffsetForLeaderEpochResponse",
    field("throttle_time_ms", Int32, since=2),
    field("topics", Array(OffsetForLeaderTopicResult)),
    versions=(0, 4),
    flexible=4,
)
