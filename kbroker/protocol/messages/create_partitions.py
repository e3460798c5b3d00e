"""CreatePartitions (37): add partitions to topics.

v3: THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

CreatePartitionsAssignment = Struct(
    "CreatePartitionsAssignment",
    field("broker_ids", Array(Int32)),
)

CreatePartitionsTopic = Struct(
    "CreatePartitionsTopic",
    field("name", String),
    field("count", Int32),
    field("assignments", Array(CreatePartitionsAssignment), nullable=0),
)

REQUEST = Message(
    "CreatePartitionsRequest",
    field("topics", Array(CreatePartitionsTopic)),
    field("timeout_ms", Int32),
    field("validate_only", Bool),
    versions=(0, 3),
    flexible=2,
)

CreatePartitionsTopicResult = Struct(
    "CreatePartitionsTopicResult",
    field("name", String),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
)

RESPONSE = Message(
    "CreatePartitionsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(CreatePartitionsTopicResult)),
    versions=(0, 3),
    flexible=2,
)
