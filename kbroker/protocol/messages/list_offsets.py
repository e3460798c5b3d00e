"""ListOffsets (2): offsets by timestamp.

Timestamps below zero: -1 the end, -2 the start, -3 the largest timestamp, -4 the local start, -5 the end of the
  remote part.

v0 returns a list of segment start offsets; v1 and later return one offset and its timestamp.
v2: isolation level. v4: leader epochs. v7: timestamp -3. v8: -4. v9: -5. v10: a timeout, for remote storage.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

ListOffsetsPartition = Struct(
    "ListOffsetsPartition",
    field("partition_index", Int32),
    field("current_leader_epoch", Int32, since=4, default=-1),
    field("timestamp", Int64),
    field("max_num_offsets", Int32, until=0, default=1),
)

ListOffsetsTopic = Struct(
    "ListOffsetsTopic",
    field("name", String),
    field("partitions", Array(ListOffsetsPartition)),
)

REQUEST = Message(
    "ListOffsetsRequest",
    field("replica_id", Int32),
    field("isolation_level", Int8, since=2),
    field("topics", Array(ListOffsetsTopic)),
    field("timeout_ms", Int32, since=10),
    versions=(0, 10),
    flexible=6,
)

ListOffsetsPartitionResponse = Struct(
    "ListOffsetsPartitionResponse",
    field("partition_index", Int32),
    field("error_code", Int16),
    field("old_style_offsets", Array(Int64), until=0),
    field("timestamp", Int64, since=1, default=-1),
    field("offset", Int64, since=1, default=-1),
    field("leader_epoch", Int32, since=4, default=-1),
)

ListOffsetsTopicResponse = Struct(
    "ListOffsetsTopicResponse",
    field("name", String),
    field("partitions", Array(ListOffsetsPartitionResponse)),
)

RESPONSE = Message(
    "ListOffsetsResponse",
    field("throttle_time_ms", Int32, since=2),
    field("topics", Array(ListOffsetsTopicResponse)),
    versions=(0, 10),
    flexible=6,
)
