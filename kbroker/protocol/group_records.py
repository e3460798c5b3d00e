"""Keys and values of `__consumer_offsets`: offsets, classic groups, KIP-848 groups, share and streams groups.

An INT16 precedes both: for a key its record type (`RECORD_TYPES`), for a value its version. Offset commits from before
Kafka 0.9 have type 0.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bytes, Int8, Int16, Int32, Int64, String, UInt16, Uuid
from kbroker.protocol.versions import Message, Struct, field

CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY = Message(
    "ConsumerGroupCurrentMemberAssignmentKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

TopicPartitions = Struct(
    "TopicPartitions",
    field("topic_id", Uuid),
    field("partitions", Array(Int32)),
)

CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE = Message(
    "ConsumerGroupCurrentMemberAssignmentValue",
    field("member_epoch", Int32),
    field("previous_member_epoch", Int32),
    field("state", Int8),
    field("assigned_partitions", Array(TopicPartitions)),
    field("partitions_pending_revocation", Array(TopicPartitions)),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_MEMBER_METADATA_KEY = Message(
    "ConsumerGroupMemberMetadataKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

ClassicProtocol = Struct(
    "ClassicProtocol",
    field("name", String),
    field("metadata", Bytes),
)

ClassicMemberMetadata = Struct(
    "ClassicMemberMetadata",
    field("session_timeout_ms", Int32),
    field("supported_protocols", Array(ClassicProtocol)),
)

CONSUMER_GROUP_MEMBER_METADATA_VALUE = Message(
    "ConsumerGroupMemberMetadataValue",
    field("instance_id", String, nullable=0),
    field("rack_id", String, nullable=0),
    field("client_id", String),
    field("client_host", String),
    field("subscribed_topic_names", Array(String)),
    field("subscribed_topic_regex", String, nullable=0),
    field("rebalance_timeout_ms", Int32, default=-1),
    field("server_assignor", String, nullable=0),
    field("classic_member_metadata", ClassicMemberMetadata, nullable=0, tag=0, default=None),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_METADATA_KEY = Message(
    "ConsumerGroupMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

CONSUMER_GROUP_METADATA_VALUE = Message(
    "ConsumerGroupMetadataValue",
    field("epoch", Int32),
    field("metadata_hash", Int64, tag=0),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_PARTITION_METADATA_KEY = Message(
    "ConsumerGroupPartitionMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

PartitionMetadata = Struct(
    "PartitionMetadata",
    field("partition", Int32),
    field("racks", Array(String)),
)

TopicMetadata = Struct(
    "TopicMetadata",
    field("topic_id", Uuid),
    field("topic_name", String),
    field("num_partitions", Int32),
    field("partition_metadata", Array(PartitionMetadata)),
)

CONSUMER_GROUP_PARTITION_METADATA_VALUE = Message(
    "ConsumerGroupPartitionMetadataValue",
    field("topics", Array(TopicMetadata)),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_REGULAR_EXPRESSION_KEY = Message(
    "ConsumerGroupRegularExpressionKey",
    field("group_id", String),
    field("regular_expression", String),
    versions=(0, 0),
)

CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE = Message(
    "ConsumerGroupRegularExpressionValue",
    field("topics", Array(String)),
    field("version", Int64),
    field("timestamp", Int64),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY = Message(
    "ConsumerGroupTargetAssignmentMemberKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

TopicPartition = Struct(
    "TopicPartition",
    field("topic_id", Uuid),
    field("partitions", Array(Int32)),
)

CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE = Message(
    "ConsumerGroupTargetAssignmentMemberValue",
    field("topic_partitions", Array(TopicPartition)),
    versions=(0, 0),
    flexible=0,
)

CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY = Message(
    "ConsumerGroupTargetAssignmentMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE = Message(
    "ConsumerGroupTargetAssignmentMetadataValue",
    field("assignment_epoch", Int32),
    versions=(0, 0),
    flexible=0,
)

GROUP_METADATA_KEY = Message(
    "GroupMetadataKey",
    field("group", String),
    versions=(0, 0),
)

MemberMetadata = Struct(
    "MemberMetadata",
    field("member_id", String),
    field("group_instance_id", String, since=3, nullable=3, default=None),
    field("client_id", String),
    field("client_host", String),
    field("rebalance_timeout", Int32, since=1, default=-1),
    field("session_timeout", Int32),
    field("subscription", Bytes),
    field("assignment", Bytes),
)

GROUP_METADATA_VALUE = Message(
    "GroupMetadataValue",
    field("protocol_type", String),
    field("generation", Int32),
    field("protocol", String, nullable=0),
    field("leader", String, nullable=0),
    field("current_state_timestamp", Int64, since=2, default=-1),
    field("members", Array(MemberMetadata)),
    versions=(0, 4),
    flexible=4,
)

LEGACY_OFFSET_COMMIT_KEY = Message(
    "LegacyOffsetCommitKey",
    field("group", String),
    field("topic", String),
    field("partition", Int32),
    versions=(0, 0),
)

LEGACY_OFFSET_COMMIT_VALUE = Message(
    "LegacyOffsetCommitValue",
    field("offset", Int64),
    field("metadata", String),
    field("commit_timestamp", Int64),
    versions=(0, 0),
)

OFFSET_COMMIT_KEY = Message(
    "OffsetCommitKey",
    field("group", String),
    field("topic", String),
    field("partition", Int32),
    versions=(0, 0),
)

OFFSET_COMMIT_VALUE = Message(
    "OffsetCommitValue",
    field("offset", Int64),
    field("leader_epoch", Int32, since=3, default=-1),
    field("metadata", String),
    field("commit_timestamp", Int64),
    field("expire_timestamp", Int64, since=1, until=1, default=-1),
    field("topic_id", Uuid, since=4, tag=0),
    versions=(0, 4),
    flexible=4,
)

SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY = Message(
    "ShareGroupCurrentMemberAssignmentKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE = Message(
    "ShareGroupCurrentMemberAssignmentValue",
    field("member_epoch", Int32),
    field("previous_member_epoch", Int32),
    field("state", Int8),
    field("assigned_partitions", Array(TopicPartitions)),
    versions=(0, 0),
    flexible=0,
)

SHARE_GROUP_MEMBER_METADATA_KEY = Message(
    "ShareGroupMemberMetadataKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

SHARE_GROUP_MEMBER_METADATA_VALUE = Message(
    "ShareGroupMemberMetadataValue",
    field("rack_id", String, nullable=0),
    field("client_id", String),
    field("client_host", String),
    field("subscribed_topic_names", Array(String)),
    versions=(0, 0),
    flexible=0,
)

SHARE_GROUP_METADATA_KEY = Message(
    "ShareGroupMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

SHARE_GROUP_METADATA_VALUE = Message(
    "ShareGroupMetadataValue",
    field("epoch", Int32),
    field("metadata_hash", Int64),
    versions=(0, 0),
    flexible=0,
)

SHARE_GROUP_STATE_PARTITION_METADATA_KEY = Message(
    "ShareGroupStatePartitionMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

TopicPartitionsInfo = Struct(
    "TopicPartitionsInfo",
    field("topic_id", Uuid),
    field("topic_name", String),
    field("partitions", Array(Int32)),
)

TopicInfo = Struct(
    "TopicInfo",
    field("topic_id", Uuid),
    field("topic_name", String),
)

SHARE_GROUP_STATE_PARTITION_METADATA_VALUE = Message(
    "ShareGroupStatePartitionMetadataValue",
    field("initializing_topics", Array(TopicPartitionsInfo)),
    field("initialized_topics", Array(TopicPartitionsInfo)),
    field("deleting_topics", Array(TopicInfo)),
    versions=(0, 0),
    flexible=0,
)

SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY = Message(
    "ShareGroupTargetAssignmentMemberKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE = Message(
    "ShareGroupTargetAssignmentMemberValue",
    field("topic_partitions", Array(TopicPartition)),
    versions=(0, 0),
    flexible=0,
)

SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_KEY = Message(
    "ShareGroupTargetAssignmentMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE = Message(
    "ShareGroupTargetAssignmentMetadataValue",
    field("assignment_epoch", Int32),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY = Message(
    "StreamsGroupCurrentMemberAssignmentKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

TaskIds = Struct(
    "TaskIds",
    field("subtopology_id", String),
    field("partitions", Array(Int32)),
)

STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE = Message(
    "StreamsGroupCurrentMemberAssignmentValue",
    field("member_epoch", Int32),
    field("previous_member_epoch", Int32),
    field("state", Int8),
    field("active_tasks", Array(TaskIds)),
    field("standby_tasks", Array(TaskIds)),
    field("warmup_tasks", Array(TaskIds)),
    field("active_tasks_pending_revocation", Array(TaskIds)),
    field("standby_tasks_pending_revocation", Array(TaskIds)),
    field("warmup_tasks_pending_revocation", Array(TaskIds)),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_MEMBER_METADATA_KEY = Message(
    "StreamsGroupMemberMetadataKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

Endpoint = Struct(
    "Endpoint",
    field("host", String),
    field("port", UInt16),
)

KeyValue = Struct(
    "KeyValue",
    field("key", String),
    field("value", String),
)

STREAMS_GROUP_MEMBER_METADATA_VALUE = Message(
    "StreamsGroupMemberMetadataValue",
    field("instance_id", String, nullable=0),
    field("rack_id", String, nullable=0),
    field("client_id", String),
    field("client_host", String),
    field("rebalance_timeout_ms", Int32, default=-1),
    field("topology_epoch", Int32),
    field("process_id", String),
    field("user_endpoint", Endpoint, nullable=0, default=None),
    field("client_tags", Array(KeyValue)),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_METADATA_KEY = Message(
    "StreamsGroupMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

STREAMS_GROUP_METADATA_VALUE = Message(
    "StreamsGroupMetadataValue",
    field("epoch", Int32),
    field("metadata_hash", Int64),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY = Message(
    "StreamsGroupTargetAssignmentMemberKey",
    field("group_id", String),
    field("member_id", String),
    versions=(0, 0),
)

STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE = Message(
    "StreamsGroupTargetAssignmentMemberValue",
    field("active_tasks", Array(TaskIds)),
    field("standby_tasks", Array(TaskIds)),
    field("warmup_tasks", Array(TaskIds)),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_KEY = Message(
    "StreamsGroupTargetAssignmentMetadataKey",
    field("group_id", String),
    versions=(0, 0),
)

STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE = Message(
    "StreamsGroupTargetAssignmentMetadataValue",
    field("assignment_epoch", Int32),
    versions=(0, 0),
    flexible=0,
)

STREAMS_GROUP_TOPOLOGY_KEY = Message(
    "StreamsGroupTopologyKey",
    field("group_id", String),
    versions=(0, 0),
)

TopicConfig = Struct(
    "TopicConfig",
    field("key", String),
    field("value", String),
)

TopicInfoStreamsGroupTopology = Struct(
    "TopicInfo",
    field("name", String),
    field("partitions", Int32),
    field("replication_factor", Int16),
    field("topic_configs", Array(TopicConfig)),
)

CopartitionGroup = Struct(
    "CopartitionGroup",
    field("source_topics", Array(Int16)),
    field("source_topic_regex", Array(Int16)),
    field("repartition_source_topics", Array(Int16)),
)

Subtopology = Struct(
    "Subtopology",
    field("subtopology_id", String),
    field("source_topics", Array(String)),
    field("source_topic_regex", Array(String)),
    field("state_changelog_topics", Array(TopicInfoStreamsGroupTopology)),
    field("repartition_sink_topics", Array(String)),
    field("repartition_source_topics", Array(TopicInfoStreamsGroupTopology)),
    field("copartition_groups", Array(CopartitionGroup)),
)

STREAMS_GROUP_TOPOLOGY_VALUE = Message(
    "StreamsGroupTopologyValue",
    field("epoch", Int32),
    field("subtopologies", Array(Subtopology)),
    versions=(0, 0),
    flexible=0,
)

RECORD_TYPES: dict[int, tuple[Message, Message]] = {
    0: (LEGACY_OFFSET_COMMIT_KEY, LEGACY_OFFSET_COMMIT_VALUE),
    1: (OFFSET_COMMIT_KEY, OFFSET_COMMIT_VALUE),
    2: (GROUP_METADATA_KEY, GROUP_METADATA_VALUE),
    3: (CONSUMER_GROUP_METADATA_KEY, CONSUMER_GROUP_METADATA_VALUE),
    4: (CONSUMER_GROUP_PARTITION_METADATA_KEY, CONSUMER_GROUP_PARTITION_METADATA_VALUE),
    5: (CONSUMER_GROUP_MEMBER_METADATA_KEY, CONSUMER_GROUP_MEMBER_METADATA_VALUE),
    6: (CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_KEY, CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE),
    7: (CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY, CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE),
    8: (CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY, CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE),
    10: (SHARE_GROUP_MEMBER_METADATA_KEY, SHARE_GROUP_MEMBER_METADATA_VALUE),
    11: (SHARE_GROUP_METADATA_KEY, SHARE_GROUP_METADATA_VALUE),
    12: (SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_KEY, SHARE_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE),
    13: (SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY, SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE),
    14: (SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY, SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE),
    15: (SHARE_GROUP_STATE_PARTITION_METADATA_KEY, SHARE_GROUP_STATE_PARTITION_METADATA_VALUE),
    16: (CONSUMER_GROUP_REGULAR_EXPRESSION_KEY, CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE),
    17: (STREAMS_GROUP_METADATA_KEY, STREAMS_GROUP_METADATA_VALUE),
    19: (STREAMS_GROUP_MEMBER_METADATA_KEY, STREAMS_GROUP_MEMBER_METADATA_VALUE),
    20: (STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_KEY, STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE),
    21: (STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_KEY, STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE),
    22: (STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_KEY, STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE),
    23: (STREAMS_GROUP_TOPOLOGY_KEY, STREAMS_GROUP_TOPOLOGY_VALUE),
}
"""Record type -> schemas of its key and its value."""
