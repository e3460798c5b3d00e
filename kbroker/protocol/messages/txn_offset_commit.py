"""TxnOffsetCommit (28): offsets committed as part of a transaction.

v3: group generation and member, to fence zombies (KIP-447). v4: TRANSACTION_ABORTABLE. v5: also adds the offsets to
  the transaction (KIP-890).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

TxnOffsetCommitRequestPartition = Struct(
    "TxnOffsetCommitRequestPartition",
    field("partition_index", Int32),
    field("committed_offset", Int64),
    field("committed_leader_epoch", Int32, since=2, default=-1),
    field("committed_metadata", String, nullable=0),
)

TxnOffsetCommitRequestTopic = Struct(
    "TxnOffsetCommitRequestTopic",
    field("name", String),
    field("partitions", Array(TxnOffsetCommitRequestPartition)),
)

REQUEST = Message(
    "TxnOffsetCommitRequest",
    field("transactional_id", String),
    field("group_id", String),
    field("producer_id", Int64),
    field("producer_epoch", Int16),
    field("generation_id", Int32, since=3, default=-1),
    field("member_id", String, since=3),
    field("group_instance_id", String, since=3, nullable=3, default=None),
    field("topics", Array(TxnOffsetCommitRequestTopic)),
    versions=(0, 5),
    flexible=3,
)

TxnOffsetCommitResponsePartition = Struct(
    "TxnOffsetCommitResponsePartition",
    field("partition_index", Int32),
    field("error_code", Int16),
)

TxnOffsetCommitResponseTopic = Struct(
    "TxnOffsetCommitResponseTopic",
    field("name", String),
    field("partitions", Array(TxnOffsetCommitResponsePartition)),
)

RESPONSE = Message(
    "TxnOffsetCommitResponse",
    field("throttle_time_ms", Int32),
    field("topics", Array(TxnOffsetCommitResponseTopic)),
    versions=(0, 5),
    flexible=3,
)
