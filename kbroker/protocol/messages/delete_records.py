"""DeleteRecords (21): delete the records before an offset.

v1: the client delays its next request when it is throttled (KIP-219).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

DeleteRecordsPartition = Struct(
    "DeleteRecordsPartition",
    field("partition_index", Int32),
    field("offset", Int64),
)

DeleteRecordsTopic = Struct(
    "DeleteRecordsTopic",
    field("name", String),
    field("partitions", Array(DeleteRecordsPartition)),
)

REQUEST = Message(
    "DeleteRecordsRequest",
    field("topics", Array(DeleteRecordsTopic)),
    field("timeout_ms", Int32),
    versions=(0, 2),
    flexible=2,
)

DeleteRecordsPartitionResult = Struct(
    "DeleteRecordsPartitionResult",
    field("partition_index", Int32),
    field("low_watermark", Int64),
    field("error_code", Int16),
)

DeleteRecordsTopicResult = Struct(
    "DeleteRecordsTopicResult",
    field("name", String),
    field("partitions", Array(DeleteRecordsPartitionResult)),
)

RESPONSE = Message(
    "DeleteRecordsResponse",
    field("throttle_time_ms", Int32),
    field("topics", Array(DeleteRecordsTopicResult)),
    versions=(0, 2),
    flexible=2,
)
