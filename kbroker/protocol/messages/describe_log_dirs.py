"""DescribeLogDirs (35): sizes of the data directories and of the logs in them.

v2: flexible. v3: a top-level error code. v4: total and usable bytes.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

DescribableLogDirTopic = Struct(
    "DescribableLogDirTopic",
    field("topic", String),
    field("partitions", Array(Int32)),
)

REQUEST = Message(
    "DescribeLogDirsRequest",
    field("topics", Array(DescribableLogDirTopic), nullable=0),
    versions=(0, 4),
    flexible=2,
)

DescribeLogDirsPartition = Struct(
    "DescribeLogDirsPartition",
    field("partition_index", Int32),
    field("partition_size", Int64),
    field("offset_lag", Int64),
    field("is_future_key", Bool),
)

DescribeLogDirsTopic = Struct(
    "DescribeLogDirsTopic",
    field("name", String),
    field("partitions", Array(DescribeLogDirsPartition)),
)

DescribeLogDirsResult = Struct(
    "DescribeLogDirsResult",
    field("error_code", Int16),
    field("log_dir", String),
    field("topics", Array(DescribeLogDirsTopic)),
    field("total_bytes", Int64, since=4, default=-1),
    field("usable_bytes", Int64, since=4, default=-1),
)

RESPONSE = Message(
    "DescribeLogDirsResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16, since=3),
    field("results", Array(DescribeLogDirsResult)),
    versions=(0, 4),
    flexible=2,
)
