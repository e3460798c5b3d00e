"""What each API asks the authorizer for, and the answer without the right: Kafka's table, as requests.

A row has one request with the name `n` of a topic, a group and a transactional id. Each of its rights has the error
codes of the response if all other rights are given. `|` separates rights of which one suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.records import Record, build_batch
from kbroker.protocol.types import Array
from kbroker.protocol.versions import Struct

__all__ = ["ASKS_NOTHING", "OF_KNOWN_CLIENTS", "ROWS", "Row", "build", "codes_of", "each_lines"]

TOPIC_FAILED, GROUP_FAILED, CLUSTER_FAILED, TRANSACTION_FAILED = 29, 30, 31, 53
NOT_ATTEMPTED = 55

Members = Mapping[str, Any]


class Row(NamedTuple):
    api: str
    version: int
    members: Callable[[str], Members]
    rights: Mapping[str, Mapping[str, int | tuple[int, ...]]]
    """Right -> path of an error code in the response -> code. An empty mapping: the name is left out."""

    @property
    def id(self) -> str:
        return f"{self.api}-v{self.version}-{next(iter(self.rights)).partition(' ')[0]}"


def each_lines(right: str, name: str) -> list[str]:
    """Returns the ACLs of which one suffices: `READ topic | CLUSTER_ACTION cluster`."""
    lines = []
    for one in right.split(" | "):
        operation, kind = one.split()
        assert operation in AclOperation.__members__
        lines.append(f"allow User:ANONYMOUS {operation} {kind}{'' if kind == 'cluster' else ' ' + name}")
    return lines


def build(struct: Struct, members: Members) -> Any:
    """Returns the value of a struct, with dicts in place of its inner structs."""
    fields = {field.name: field.subcon for field in struct.fields}
    return struct(**{name: _value(fields[name], given) for name, given in members.items()})


def _value(subcon: Any, given: Any) -> Any:
    if isinstance(subcon, Array) and isinstance(subcon.element, Struct) and given is not None:
        return [build(subcon.element, item) for item in given]
    return build(subcon, given) if isinstance(subcon, Struct) and isinstance(given, dict) else given


def codes_of(struct: Struct, value: Any, path: str = "") -> dict[str, list[int]]:
    """Returns the error codes of a response that are not 0, by their path."""
    found: dict[str, list[int]] = {}
    for field in struct.fields:
        member, subcon = getattr(value, field.name), field.subcon
        if field.name.endswith("error_code") and member:
            found.setdefault(path + field.name, []).append(member)
        elif isinstance(subcon, Array) and isinstance(subcon.element, Struct):
            for item in member or ():
                for inner, codes in codes_of(subcon.element, item, f"{path}{field.name}.").items():
                    found.setdefault(inner, []).extend(codes)
    return found


def batch(*, is_transactional: bool = False) -> bytearray:
    records = [Record(0, 1_700_000_000_000, None, b"value")]
    if not is_transactional:
        return build_batch(records)
    return build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)


def produce(n: str, **more: Any) -> Members:
    data = [{"index": 0, "records": batch(is_transactional="transactional_id" in more)}]
    return {"acks": -1, "timeout_ms": 1000, "topic_data": [{"name": n, "partition_data": data}], **more}


def fetch(n: str, **more: Any) -> Members:
    asked = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    return {"max_wait_ms": 0, "min_bytes": 0, "topics": [{"topic": n, "partitions": asked}], **more}


def commit(n: str) -> list[dict[str, Any]]:
    return [{"name": n, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]


def config(kind: int, n: str, *, operation: bool = False, **value: Any) -> list[dict[str, Any]]:
    given = {"name": "retention.ms", "value": "1000", **({"config_operation": 0} if operation else {}), **value}
    return [{"resource_type": kind, "resource_name": n, "configs": [given]}]


def acl(n: str) -> dict[str, Any]:
    entry = {"resource_type": 2, "resource_name": n, "resource_pattern_type": 3, "principal": "User:x", "host": "*"}
    return {**entry, "operation": 3, "permission_type": 3}


ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NAMED_ACL = {**ANY_ACL, "resource_name_filter": None, "principal_filter": None, "host_filter": None}
PRODUCER = {"producer_id": 7, "producer_epoch": 0}
JOIN = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
TXN_TOPICS = "results_by_topic_v3_and_below.results_by_partition.partition_error_code"
QUOTA_OP = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}

ROWS = (
    Row("Produce", 9, produce, {"WRITE topic": {"responses.partition_responses.error_code": TOPIC_FAILED}}),
    Row(
        "Produce",
        9,
        lambda n: produce(n, transactional_id=n),
        {
            "WRITE transactional_id": {"responses.partition_responses.error_code": TRANSACTION_FAILED},
            "WRITE topic": {"responses.partition_responses.error_code": TOPIC_FAILED},
        },
    ),
    Row("Fetch", 12, fetch, {"READ topic": {"responses.partitions.error_code": TOPIC_FAILED}}),
    Row(
        "Fetch",
        12,
        lambda n: fetch(n, replica_id=2),
        {"CLUSTER_ACTION cluster": {"responses.partitions.error_code": TOPIC_FAILED}},
    ),
    Row(
        "ListOffsets",
        7,
        lambda n: {
            "replica_id": -1,
            "topics": [{"name": n, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
        {"DESCRIBE topic": {"topics.partitions.error_code": TOPIC_FAILED}},
    ),
    Row(
        "Metadata",
        12,
        lambda n: {"topics": [{"name": n}], "allow_auto_topic_creation": False},
        {"DESCRIBE topic": {"topics.error_code": TOPIC_FAILED}},
    ),
    Row(
        "OffsetCommit",
        8,
        lambda n: {"group_id": n, "topics": commit(n)},
        {
            "READ group": {"topics.partitions.error_code": GROUP_FAILED},
            "READ topic": {"topics.partitions.error_code": TOPIC_FAILED},
        },
    ),
    *(
        Row(
            "OffsetFetch",
            version,
            lambda n: {"group_id": n, "topics": [{"name": n, "partition_indexes": [0]}]},
            {
                "DESCRIBE group": {"topics.partitions.error_code" if version < 2 else "error_code": GROUP_FAILED},
                "DESCRIBE topic": {"topics.partitions.error_code": TOPIC_FAILED},
            },
        )
        for version in (1, 7)
    ),
    Row(
        "OffsetFetch",
        8,
        lambda n: {"groups": [{"group_id": n, "topics": [{"name": n, "partition_indexes": [0]}]}]},
        {
            "DESCRIBE group": {"groups.error_code": GROUP_FAILED},
            "DESCRIBE topic": {"groups.topics.partitions.error_code": TOPIC_FAILED},
        },
    ),
    Row("FindCoordinator", 3, lambda n: {"key": n, "key_type": 0}, {"DESCRIBE group": {"error_code": GROUP_FAILED}}),
    Row(
        "FindCoordinator",
        4,
        lambda n: {"coordinator_keys": [n], "key_type": 0},
        {"DESCRIBE group": {"coordinators.error_code": GROUP_FAILED}},
    ),
    Row(
        "FindCoordinator",
        4,
        lambda n: {"coordinator_keys": [n], "key_type": 1},
        {"DESCRIBE transactional_id": {"coordinators.error_code": TRANSACTION_FAILED}},
    ),
    Row(
        "FindCoordinator",
        6,
        lambda n: {"coordinator_keys": [n], "key_type": 2},
        {"CLUSTER_ACTION cluster": {"coordinators.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "JoinGroup",
        9,
        lambda n: {"group_id": n, "member_id": "", "protocols": [{"name": "range", "metadata": b""}], **JOIN},
        {"READ group": {"error_code": GROUP_FAILED}},
    ),
    Row(
        "Heartbeat",
        4,
        lambda n: {"group_id": n, "generation_id": 1, "member_id": "m"},
        {"READ group": {"error_code": GROUP_FAILED}},
    ),
    Row(
        "LeaveGroup",
        5,
        lambda n: {"group_id": n, "members": [{"member_id": "m"}]},
        {"READ group": {"error_code": GROUP_FAILED}},
    ),
    Row(
        "SyncGroup",
        5,
        lambda n: {
            "group_id": n,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocol_name": "range",
        },
        {"READ group": {"error_code": GROUP_FAILED}},
    ),
    Row("DescribeGroups", 6, lambda n: {"groups": [n]}, {"DESCRIBE group": {"groups.error_code": GROUP_FAILED}}),
    Row("ListGroups", 5, lambda n: {}, {"DESCRIBE group | DESCRIBE cluster": {}}),
    Row(
        "CreateTopics",
        7,
        lambda n: {"topics": [{"name": n, "num_partitions": 1, "replication_factor": 1}], "validate_only": True},
        {"CREATE topic | CREATE cluster": {"topics.error_code": TOPIC_FAILED}},
    ),
    Row(
        "DeleteTopics",
        5,
        lambda n: {"topic_names": [n], "timeout_ms": 1000},
        {"DELETE topic": {"responses.error_code": TOPIC_FAILED}},
    ),
    Row(
        "DeleteTopics",
        6,
        lambda n: {"topics": [{"name": n}], "timeout_ms": 1000},
        {"DELETE topic": {"responses.error_code": TOPIC_FAILED}},
    ),
    Row(
        "DeleteRecords",
        2,
        lambda n: {"topics": [{"name": n, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout_ms": 1000},
        {"DELETE topic": {"topics.partitions.error_code": TOPIC_FAILED}},
    ),
    Row(
        "InitProducerId",
        4,
        lambda n: {"transactional_id": n, "transaction_timeout_ms": 1000},
        {"WRITE transactional_id": {"error_code": TRANSACTION_FAILED}},
    ),
    Row(
        "InitProducerId",
        4,
        lambda n: {"transactional_id": None},
        {"IDEMPOTENT_WRITE cluster | WRITE topic": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "OffsetForLeaderEpoch",
        4,
        lambda n: {"topics": [{"topic": n, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        {"DESCRIBE topic | CLUSTER_ACTION cluster": {"topics.partitions.error_code": TOPIC_FAILED}},
    ),
    Row(
        "AddPartitionsToTxn",
        3,
        lambda n: {
            "v3_and_below_transactional_id": n,
            "v3_and_below_producer_id": 7,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": n, "partitions": [0]}],
        },
        {"WRITE transactional_id": {TXN_TOPICS: TRANSACTION_FAILED}, "WRITE topic": {TXN_TOPICS: TOPIC_FAILED}},
    ),
    Row(
        "AddPartitionsToTxn",
        4,
        lambda n: {
            "transactions": [
                {"transactional_id": n, "topics": [{"name": n, "partitions": [0]}], "verify_only": True, **PRODUCER}
            ]
        },
        {"CLUSTER_ACTION cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "AddOffsetsToTxn",
        3,
        lambda n: {"transactional_id": n, "group_id": n, **PRODUCER},
        {
            "WRITE transactional_id": {"error_code": TRANSACTION_FAILED},
            "READ group": {"error_code": GROUP_FAILED},
        },
    ),
    Row(
        "EndTxn",
        3,
        lambda n: {"transactional_id": n, "committed": False, **PRODUCER},
        {"WRITE transactional_id": {"error_code": TRANSACTION_FAILED}},
    ),
    Row(
        "WriteTxnMarkers",
        1,
        lambda n: {
            "markers": [
                {
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": [{"name": n, "partition_indexes": [0]}],
                    **PRODUCER,
                }
            ]
        },
        {"CLUSTER_ACTION cluster | ALTER cluster": {"markers.topics.partitions.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "TxnOffsetCommit",
        3,
        lambda n: {"transactional_id": n, "group_id": n, "topics": commit(n), **PRODUCER},
        {
            "WRITE transactional_id": {"topics.partitions.error_code": TRANSACTION_FAILED},
            "READ group": {"topics.partitions.error_code": GROUP_FAILED},
            "READ topic": {"topics.partitions.error_code": TOPIC_FAILED},
        },
    ),
    Row(
        "DescribeAcls",
        3,
        lambda n: {**NAMED_ACL, "resource_name_filter": n},
        {"DESCRIBE cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "CreateAcls",
        3,
        lambda n: {"creations": [acl(n), acl(n)]},
        {"ALTER cluster": {"results.error_code": (CLUSTER_FAILED, CLUSTER_FAILED)}},
    ),
    Row(
        "DeleteAcls",
        3,
        lambda n: {"filters": [{**NAMED_ACL, "resource_name_filter": n}]},
        {"ALTER cluster": {"filter_results.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "DescribeConfigs",
        4,
        lambda n: {"resources": [{"resource_type": 2, "resource_name": n, "configuration_keys": None}]},
        {"DESCRIBE_CONFIGS topic": {"results.error_code": TOPIC_FAILED}},
    ),
    *(
        Row(
            "DescribeConfigs",
            4,
            lambda n, kind=kind, name=name: {  # type: ignore[misc]
                "resources": [{"resource_type": kind, "resource_name": name or n, "configuration_keys": None}]
            },
            {f"DESCRIBE_CONFIGS {resource}": {"results.error_code": code}},
        )
        for kind, name, resource, code in (
            (4, "1", "cluster", CLUSTER_FAILED),
            (8, "1", "cluster", CLUSTER_FAILED),
            (16, "", "cluster", CLUSTER_FAILED),
            (32, "", "group", GROUP_FAILED),
        )
    ),
    Row(
        "AlterConfigs",
        2,
        lambda n: {"resources": config(2, n), "validate_only": False},
        {"ALTER_CONFIGS topic": {"responses.error_code": TOPIC_FAILED}},
    ),
    Row(
        "IncrementalAlterConfigs",
        1,
        lambda n: {"resources": config(2, n, operation=True), "validate_only": False},
        {"ALTER_CONFIGS topic": {"responses.error_code": TOPIC_FAILED}},
    ),
    Row(
        "IncrementalAlterConfigs",
        1,
        lambda n: {"resources": config(4, "1", operation=True, name="log.retention.ms"), "validate_only": True},
        {"ALTER_CONFIGS cluster": {"responses.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "AlterReplicaLogDirs",
        2,
        lambda n: {"dirs": [{"path": "/nowhere", "topics": [{"name": n, "partitions": [0]}]}]},
        {"ALTER cluster": {"results.partitions.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "DescribeLogDirs",
        4,
        lambda n: {"topics": [{"topic": n, "partitions": [0]}]},
        {"DESCRIBE cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row("DescribeLogDirs", 1, lambda n: {"topics": None}, {"DESCRIBE cluster": {}}),
    Row(
        "CreatePartitions",
        3,
        lambda n: {"topics": [{"name": n, "count": 3, "assignments": None}], "timeout_ms": 1000},
        {"ALTER topic": {"results.error_code": TOPIC_FAILED}},
    ),
    Row("DeleteGroups", 2, lambda n: {"groups_names": [n]}, {"DELETE group": {"results.error_code": GROUP_FAILED}}),
    Row(
        "ElectLeaders",
        2,
        lambda n: {"election_type": 0, "topic_partitions": [{"topic": n, "partitions": [0]}]},
        {
            "ALTER cluster": {
                "error_code": CLUSTER_FAILED,
                "replica_election_results.partition_result.error_code": CLUSTER_FAILED,
            }
        },
    ),
    Row(
        "AlterPartitionReassignments",
        0,
        lambda n: {"topics": [{"name": n, "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        {"ALTER cluster": {"error_code": CLUSTER_FAILED, "responses.partitions.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "ListPartitionReassignments",
        0,
        lambda n: {"topics": [{"name": n, "partition_indexes": [0]}]},
        {"DESCRIBE cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "OffsetDelete",
        0,
        lambda n: {"group_id": n, "topics": [{"name": n, "partitions": [{"partition_index": 0}]}]},
        {
            "DELETE group": {"error_code": GROUP_FAILED},
            "READ topic": {"topics.partitions.error_code": TOPIC_FAILED},
        },
    ),
    Row(
        "DescribeClientQuotas",
        1,
        lambda n: {"components": [], "strict": False},
        {"DESCRIBE_CONFIGS cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "AlterClientQuotas",
        1,
        lambda n: {
            "entries": [{"entity": [{"entity_type": "client-id", "entity_name": n}], "ops": [QUOTA_OP]}],
            "validate_only": True,
        },
        {"ALTER_CONFIGS cluster": {"entries.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "DescribeUserScramCredentials",
        0,
        lambda n: {"users": [{"name": n}]},
        {"DESCRIBE cluster": {"error_code": CLUSTER_FAILED, "results.error_code": CLUSTER_FAILED}},
    ),
    Row(
        "AlterUserScramCredentials",
        0,
        lambda n: {"deletions": [{"name": n, "mechanism": 1}], "upsertions": []},
        {"ALTER cluster": {"results.error_code": CLUSTER_FAILED}},
    ),
    Row("UpdateFeatures", 1, lambda n: {}, {"ALTER cluster": {"error_code": CLUSTER_FAILED}}),
    Row(
        "DescribeProducers",
        0,
        lambda n: {"topics": [{"name": n, "partition_indexes": [0]}]},
        {"READ topic": {"topics.partitions.error_code": TOPIC_FAILED}},
    ),
    Row(
        "DescribeTransactions",
        0,
        lambda n: {"transactional_ids": [n]},
        {"DESCRIBE transactional_id": {"transaction_states.error_code": TRANSACTION_FAILED}},
    ),
    Row("ListTransactions", 1, lambda n: {}, {"DESCRIBE transactional_id": {}}),
    Row(
        "ConsumerGroupHeartbeat",
        1,
        lambda n: {
            "group_id": n,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": [n],
            "topic_partitions": [],
        },
        {"READ group": {"error_code": GROUP_FAILED}, "DESCRIBE topic": {"error_code": TOPIC_FAILED}},
    ),
    Row(
        "ConsumerGroupDescribe",
        1,
        lambda n: {"group_ids": [n]},
        {"DESCRIBE group": {"groups.error_code": GROUP_FAILED}},
    ),
    Row(
        "ListConfigResources",
        1,
        lambda n: {"resource_types": []},
        {"DESCRIBE_CONFIGS cluster": {"error_code": CLUSTER_FAILED}},
    ),
    Row(
        "DescribeTopicPartitions",
        0,
        lambda n: {"topics": [{"name": n}]},
        {"DESCRIBE topic": {"topics.error_code": TOPIC_FAILED}},
    ),
)

ASKS_NOTHING = ("ApiVersions", "DescribeCluster", "SaslAuthenticate", "SaslHandshake")
OF_KNOWN_CLIENTS = (
    "CreateDelegationToken",
    "DescribeDelegationToken",
    "ExpireDelegationToken",
    "RenewDelegationToken",
)
"""Refused on PLAINTEXT listeners in any case: see test_delegation_tokens.py."""
