"""Table of all APIs in `messages/`, and the versions that this broker supports.

A schema module is imported when its API is first used. ApiVersions responses and docs/compatibility.md are derived from
this table: only the versions in `serves` are advertised.
"""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

from kbroker.protocol.headers import request_header_version, response_header_version
from kbroker.protocol.versions import Message

__all__ = ["APIS", "Api", "api"]


class Api:
    """One API. `serves`: the first and last version that the broker supports; None if it does not support the API."""

    def __init__(
        self,
        key: int,
        name: str,
        module: str,
        *,
        serves: tuple[int, int] | None = None,
        between_brokers: bool = False,
    ) -> None:
        self.key = key
        self.name = name
        self.module_name = module
        self.serves = serves
        self.between_brokers = between_brokers

    @cached_property
    def messages(self) -> Any:
        """Returns the schema module, `kbroker.protocol.messages.<name>`."""
        return importlib.import_module(f"kbroker.protocol.messages.{self.module_name}")

    @cached_property
    def request(self) -> Message:
        message: Message = self.messages.REQUEST
        return message

    @cached_property
    def response(self) -> Message:
        message: Message = self.messages.RESPONSE
        return message

    @property
    def versions(self) -> range:
        """Returns all versions that the schema declares."""
        return self.request.versions

    def request_header_version(self, version: int) -> int:
        return request_header_version(self.key, version, flexible_since=self.request.flexible_since)

    def response_header_version(self, version: int) -> int:
        return response_header_version(self.key, version, flexible_since=self.response.flexible_since)

    def is_served(self, *, is_in_cluster: bool = False) -> bool:
        """Whether the broker supports the API. APIs between brokers are supported in a cluster only."""
        return self.serves is not None and (is_in_cluster or not self.between_brokers)

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name}>"


APIS: tuple[Api, ...] = (
    Api(0, "Produce", "produce", serves=(0, 13)),
    Api(1, "Fetch", "fetch", serves=(0, 18)),
    Api(2, "ListOffsets", "list_offsets", serves=(0, 10)),
    Api(3, "Metadata", "metadata", serves=(0, 13)),
    Api(4, "LeaderAndIsr", "leader_and_isr", serves=(0, 7), between_brokers=True),
    Api(5, "StopReplica", "stop_replica", serves=(0, 4), between_brokers=True),
    Api(6, "UpdateMetadata", "update_metadata", serves=(0, 8), between_brokers=True),
    Api(7, "ControlledShutdown", "controlled_shutdown", serves=(0, 3), between_brokers=True),
    Api(8, "OffsetCommit", "offset_commit", serves=(0, 9)),
    Api(9, "OffsetFetch", "offset_fetch", serves=(0, 9)),
    Api(10, "FindCoordinator", "find_coordinator", serves=(0, 6)),
    Api(11, "JoinGroup", "join_group", serves=(0, 9)),
    Api(12, "Heartbeat", "heartbeat", serves=(0, 4)),
    Api(13, "LeaveGroup", "leave_group", serves=(0, 5)),
    Api(14, "SyncGroup", "sync_group", serves=(0, 5)),
    Api(15, "DescribeGroups", "describe_groups", serves=(0, 6)),
    Api(16, "ListGroups", "list_groups", serves=(0, 5)),
    Api(17, "SaslHandshake", "sasl_handshake", serves=(0, 1)),
    Api(18, "ApiVersions", "api_versions", serves=(0, 4)),
    Api(19, "CreateTopics", "create_topics", serves=(0, 7)),
    Api(20, "DeleteTopics", "delete_topics", serves=(0, 6)),
    Api(21, "DeleteRecords", "delete_records", serves=(0, 2)),
    Api(22, "InitProducerId", "init_producer_id", serves=(0, 5)),
    Api(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", serves=(0, 4)),
    Api(24, "AddPartitionsToTxn", "add_partitions_to_txn", serves=(0, 5)),
    Api(25, "AddOffsetsToTxn", "add_offsets_to_txn", serves=(0, 4)),
    Api(26, "EndTxn", "end_txn", serves=(0, 5)),
    Api(27, "WriteTxnMarkers", "write_txn_markers", serves=(0, 1)),
    Api(28, "TxnOffsetCommit", "txn_offset_commit", serves=(0, 5)),
    Api(29, "DescribeAcls", "describe_acls", serves=(0, 3)),
    Api(30, "CreateAcls", "create_acls", serves=(0, 3)),
    Api(31, "DeleteAcls", "delete_acls", serves=(0, 3)),
    Api(32, "DescribeConfigs", "describe_configs", serves=(0, 4)),
    Api(33, "AlterConfigs", "alter_configs", serves=(0, 2)),
    Api(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", serves=(0, 2)),
    Api(35, "DescribeLogDirs", "describe_log_dirs", serves=(0, 4)),
    Api(36, "SaslAuthenticate", "sasl_authenticate", serves=(0, 2)),
    Api(37, "CreatePartitions", "create_partitions", serves=(0, 3)),
    Api(38, "CreateDelegationToken", "create_delegation_token", serves=(0, 3)),
    Api(39, "RenewDelegationToken", "renew_delegation_token", serves=(0, 2)),
    Api(40, "ExpireDelegationToken", "expire_delegation_token", serves=(0, 2)),
    Api(41, "DescribeDelegationToken", "describe_delegation_token", serves=(0, 3)),
    Api(42, "DeleteGroups", "delete_groups", serves=(0, 2)),
    Api(43, "ElectLeaders", "elect_leaders", serves=(0, 2)),
    Api(44, "IncrementalAlterConfigs", "incremental_alter_configs", serves=(0, 1)),
    Api(45, "AlterPartitionReassignments", "alter_partition_reassignments", serves=(0, 1)),
    Api(46, "ListPartitionReassignments", "list_partition_reassignments", serves=(0, 0)),
    Api(47, "OffsetDelete", "offset_delete", serves=(0, 0)),
    Api(48, "DescribeClientQuotas", "describe_client_quotas", serves=(0, 1)),
    Api(49, "AlterClientQuotas", "alter_client_quotas", serves=(0, 1)),
    Api(50, "DescribeUserScramCredentials", "describe_user_scram_credentials", serves=(0, 0)),
    Api(51, "AlterUserScramCredentials", "alter_user_scram_credentials", serves=(0, 0)),
    Api(56, "AlterPartition", "alter_partition", serves=(0, 3), between_brokers=True),
    Api(57, "UpdateFeatures", "update_features", serves=(0, 2)),
    Api(58, "Envelope", "envelope", serves=(0, 0), between_brokers=True),
    Api(60, "DescribeCluster", "describe_cluster", serves=(0, 2)),
    Api(61, "DescribeProducers", "describe_producers", serves=(0, 0)),
    Api(65, "DescribeTransactions", "describe_transactions", serves=(0, 0)),
    Api(66, "ListTransactions", "list_transactions", serves=(0, 2)),
    Api(67, "AllocateProducerIds", "allocate_producer_ids", serves=(0, 0), between_brokers=True),
    Api(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", serves=(0, 1)),
    Api(69, "ConsumerGroupDescribe", "consumer_group_describe", serves=(0, 1)),
    Api(71, "GetTelemetrySubscriptions", "get_telemetry_subscriptions"),
    Api(72, "PushTelemetry", "push_telemetry"),
    Api(74, "ListConfigResources", "list_config_resources", serves=(0, 1)),
    Api(75, "DescribeTopicPartitions", "describe_topic_partitions", serves=(0, 0)),
    Api(76, "ShareGroupHeartbeat", "share_group_heartbeat"),
    Api(77, "ShareGroupDescribe", "share_group_describe"),
    Api(78, "ShareFetch", "share_fetch"),
    Api(79, "ShareAcknowledge", "share_acknowledge"),
    Api(90, "DescribeShareGroupOffsets", "describe_share_group_offsets"),
    Api(91, "AlterShareGroupOffsets", "alter_share_group_offsets"),
    Api(92, "DeleteShareGroupOffsets", "delete_share_group_offsets"),
)

_BY_KEY = {row.key: row for row in APIS}


def api(key: int) -> Api:
    """Returns the API with this key. Raises KeyError if it is unknown."""
    return _BY_KEY[key]
