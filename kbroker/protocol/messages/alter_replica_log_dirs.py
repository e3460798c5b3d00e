"""AlterReplicaLogDirs (34): move replicas between the data directories of one broker.

v1: the client delays its next request when it is throttled (KIP-219).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

AlterReplicaLogDirTopic = Struct(
    "AlterReplicaLogDirTopic",
    field("name", String),
    field("partitions", Array(Int32)),
)

AlterReplicaLogDir = Struct(
    "AlterReplicaLogDir",
    field("path", String),
    field("topics", Array(AlterReplicaLogDirTopic)),
)

REQUEST = Message(
    "AlterReplicaLogDirsRequest",
    field("dirs", Array(AlterReplicaLogDir)),
    versions=(0, 2),
    flexible=2,
)

AlterReplicaLogDirPartitionResult = Struct(
    "AlterReplicaLogDirPartitionResult",
    field("partition_index", Int32),
    field("error_code", Int16),
)

AlterReplicaLogDirTopicResult = Struct(
    "AlterReplicaLogDirTopicResult",
    field("topic_name", String),
    field("partitions", Array(AlterReplicaLogDirPartitionResult)),
)

RESPONSE = Message(
    "AlterReplicaLogDirsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(AlterReplicaLogDirTopicResult)),
    versions=(0, 2),
    flexible=2,
)
