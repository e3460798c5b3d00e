"""OffsetCommit (8): offsets that a consumer group has processed.

v1: kept in the offsets topic, with a time of commit for each partition. v2 to v4: a retention for the whole request.
v6: leader epochs. v7: static members. v9: members of the KIP-848 protocol; GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

OffsetCommitRequestPartition = Struct(
    "OffsetCommitRequestPartition",
    field("partition_index", Int32),
    field("committed_offset", Int64),
    field("committed_leader_epoch", Int32, since=6, default=-1),
    field("commit_timestamp", Int64, since=1, until=1, default=-1),
    field("committed_metadata", String, nullable=0),
)

OffsetCommitRequestTopic = Struct(
    "OffsetCommitRequestTopic",
    field("name", String),
    field("partitions", Array(OffsetCommitRequestPartition)),
)

REQUEST = Message(
    "OffsetCommitRequest",
    field("group_id", String),
    field("generation_id_or_member_epoch", Int32, since=1, default=-1),
    field("member_id", String, since=1),
    field("group_instance_id", String, since=7, nullable=7, default=None),
    field("retention_time_ms", Int64, since=2, until=4, default=-1),
    field("topics", Array(OffsetCommitRequestTopic)),
    versions=(0, 9),
    flexible=8,
)

OffsetCommitResponsePartition = Struct(
    "OffsetCommitResponsePartition",
    field("partition_index", Int32),
    field("error_code", Int16),
)

OffsetCommitResponseTopic = Struct(
    "OffsetCommitResponseTopic",
    field("name", String),
    field("partitions", Array(OffsetCommitResponsePartition)),
)

RESPONSE = Message(
    "OffsetCommitResponse",
    field("throttle_time_ms", Int32, since=3),
    field("topics", Array(OffsetCommitResponseTopic)),
    versions=(0, 9),
    flexible=8,
)
