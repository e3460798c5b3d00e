"""OffsetFetch (9): offsets that a group has committed.

v2: a null list of topics means all of them, and a group error is returned once. v5: leader epochs.
v7: require stable offsets (KIP-447). v8: several groups at once. v9: members of the KIP-848 protocol.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

OffsetFetchRequestTopic = Struct(
    "OffsetFetchRequestTopic",
    field("name", String, until=7),
    field("partition_indexes", Array(Int32), until=7),
)

OffsetFetchRequestTopics = Struct(
    "OffsetFetchRequestTopics",
    field("name", String, since=8),
    field("partition_indexes", Array(Int32), since=8),
)

OffsetFetchRequestGroup = Struct(
    "OffsetFetchRequestGroup",
    field("group_id", String, since=8),
    field("member_id", String, since=9, nullable=9, default=None),
    field("member_epoch", Int32, since=9, default=-1),
    field("topics", Array(OffsetFetchRequestTopics), since=8, nullable=8),
)

REQUEST = Message(
    "OffsetFetchRequest",
    field("group_id", String, until=7),
    field("topics", Array(OffsetFetchRequestTopic), until=7, nullable=2),
    field("groups", Array(OffsetFetchRequestGroup), since=8),
    field("require_stable", Bool, since=7),
    versions=(0, 9),
    flexible=6,
)

OffsetFetchResponsePartition = Struct(
    "OffsetFetchResponsePartition",
    field("partition_index", Int32, until=7),
    field("committed_offset", Int64, until=7),
    field("committed_leader_epoch", Int32, since=5, until=7, default=-1),
    field("metadata", String, until=7, nullable=0),
    field("error_code", Int16, until=7),
)

OffsetFetchResponseTopic = Struct(
    "OffsetFetchResponseTopic",
    field("name", String, until=7),
    field("partitions", Array(OffsetFetchResponsePartition), until=7),
)

OffsetFetchResponsePartitions = Struct(
    "OffsetFetchResponsePartitions",
    field("partition_index", Int32, since=8),
    field("committed_offset", Int64, since=8),
    field("committed_leader_epoch", Int32, since=8, default=-1),
    field("metadata", String, since=8, nullable=8),
    field("error_code", Int16, since=8),
)

OffsetFetchResponseTopics = Struct(
    "OffsetFetchResponseTopics",
    field("name", String, since=8),
    field("partitions", Array(OffsetFetchResponsePartitions), since=8),
)

OffsetFetchResponseGroup = Struct(
    "OffsetFetchResponseGroup",
    field("group_id", String, since=8),
    field("topics", Array(OffsetFetchResponseTopics), since=8),
    field("error_code", Int16, since=8),
)

RESPONSE = Message(
    "OffsetFetchResponse",
    field("throttle_time_ms", Int32, since=3),
    field("topics", Array(OffsetFetchResponseTopic), until=7),
    field("error_code", Int16, since=2, until=7),
    field("groups", Array(OffsetFetchResponseGroup), since=8),
    versions=(0, 9),
    flexible=6,
)
