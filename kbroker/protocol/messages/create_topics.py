"""CreateTopics (19): create topics.

v1: validate only. v4: -1 for partitions and replication factor means the broker's default. v5: the resulting
  configs.
v6: THROTTLING_QUOTA_EXCEEDED. v7: the topic id.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

CreatableReplicaAssignment = Struct(
    "CreatableReplicaAssignment",
    field("partition_index", Int32),
    field("broker_ids", Array(Int32)),
)

CreatableTopicConfig = Struct(
    "CreatableTopicConfig",
    field("name", String),
    field("value", String, nullable=0),
)

CreatableTopic = Struct(
    "CreatableTopic",
    field("name", String),
    field("num_partitions", Int32),
    field("replication_factor", Int16),
    field("assignments", Array(CreatableReplicaAssignment)),
    field("configs", Array(CreatableTopicConfig)),
)

REQUEST = Message(
    "CreateTopicsRequest",
    field("topics", Array(CreatableTopic)),
    field("timeout_ms", Int32, default=60000),
    field("validate_only", Bool, since=1),
    versions=(0, 7),
    flexible=5,
)

CreatableTopicConfigs = Struct(
    "CreatableTopicConfigs",
    field("name", String, since=5),
    field("value", String, since=5, nullable=5),
    field("read_only", Bool, since=5),
    field("config_source", Int8, since=5, default=-1),
    field("is_sensitive", Bool, since=5),
)

CreatableTopicResult = Struct(
    "CreatableTopicResult",
    field("name", String),
    field("topic_id", Uuid, since=7),
    field("error_code", Int16),
    field("error_message", String, since=1, nullable=1),
    field("topic_config_error_code", Int16, since=5, tag=0),
    field("num_partitions", Int32, since=5, default=-1),
    field("replication_factor", Int16, since=5, default=-1),
    field("configs", Array(CreatableTopicConfigs), since=5, nullable=5),
)

RESPONSE = Message(
    "CreateTopicsResponse",
    field("throttle_time_ms", Int32, since=2),
    field("topics", Array(CreatableTopicResult)),
    versions=(0, 7),
    flexible=5,
)
