"""Partitions, log directories, leaders and the cluster, through the admin clients of two libraries."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicCollection, TopicPartition
from confluent_kafka import admin as confluent_admin
from kafka import admin as kafka_admin
from kafka.errors import SecurityDisabledError

from compat_tests.scenarios.conftest import code_of
from compat_tests.scenarios.records import produce_with_confluent, sample_records

confluent: Any = confluent_admin

INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION = 37, 39, 3
ELECTION_NOT_NEEDED, SECURITY_DISABLED = 84, 54


@pytest.fixture
def created(admin: Any, topic: str) -> str:
    admin.create_topics([confluent.NewTopic(topic, 2, 1)])[topic].result()
    return topic


def grow(admin: Any, wish: Any, **options: Any) -> int:
    return code_of(admin.create_partitions([wish], **options)[wish.topic])


def count(admin: Any, topic: str) -> int:
    return len(admin.describe_topics(TopicCollection([topic]))[topic].result().partitions)


def test_a_topic_grows_and_never_shrinks(admin: Any, created: str) -> None:
    assert grow(admin, confluent.NewPartitions(created, 5), validate_only=True) == 0
    assert count(admin, created) == 2
    assert grow(admin, confluent.NewPartitions(created, 4)) == 0
    assert count(admin, created) == 4
    assert grow(admin, confluent.NewPartitions(created, 4)) == INVALID_PARTITIONS
    assert grow(admin, confluent.NewPartitions(created, 3)) == INVALID_PARTITIONS
    assert grow(admin, confluent.NewPartitions(created, 5, replica_assignment=[[1]])) == 0
    assert grow(admin, confluent.NewPartitions(created, 6, replica_assignment=[[7]])) == INVALID_REPLICA_ASSIGNMENT
    assert grow(admin, confluent.NewPartitions("no-such-topic", 6)) == UNKNOWN_TOPIC_OR_PARTITION
    assert count(admin, created) == 5


def test_the_cluster_is_described(admin: Any, bootstrap: str) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result()
    assert len(cluster.cluster_id) == 22
    assert (cluster.controller.id, [node.id for node in cluster.nodes]) == (1, [1])
    assert f"{cluster.nodes[0].host}:{cluster.nodes[0].port}" == bootstrap
    assert confluent.AclOperation.CREATE in cluster.authorized_operations


def test_topics_are_described_page_by_page(python_admin: Any, created: str) -> None:
    (described,) = python_admin.describe_topic_partitions([created])["topics"]
    assert [(partition["partition_index"], partition["leader_id"]) for partition in described["partitions"]] == [
        (0, 1),
        (1, 1),
    ]


def test_log_dirs_have_the_sizes_of_logs(python_admin: Any, bootstrap: str, created: str) -> None:
    produce_with_confluent(bootstrap, created, sample_records(50))
    (broker,) = python_admin.describe_log_dirs()
    (directory,) = broker["log_dirs"]
    assert (broker["broker"], directory["error_code"]) == (1, 0)
    assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    (topic,) = [topic for topic in directory["topics"] if topic["name"] == created]
    sizes = {partition["partition_index"]: partition["partition_size"] for partition in topic["partitions"]}
    assert sizes[0] > 50
    assert sizes[1] == 0
    assert not any(partition["offset_lag"] or partition["is_future_key"] for partition in topic["partitions"])


def test_on_one_broker_no_election_is_needed(admin: Any, created: str) -> None:
    for election in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        outcome = admin.elect_leaders(election, [TopicPartition(created, 0), TopicPartition(created, 9)]).result()
        codes = {partition.partition: error.code() for partition, error in outcome.items()}
        assert codes == {0: ELECTION_NOT_NEEDED, 9: UNKNOWN_TOPIC_OR_PARTITION}


def test_without_an_authorizer_security_is_disabled(admin: Any, python_admin: Any) -> None:
    any_resource = kafka_admin.ResourcePatternFilter(
        kafka_admin.ResourceType.ANY, None, kafka_admin.ACLResourcePatternType.ANY
    )
    any_acl = kafka_admin.ACLFilter(
        None, None, kafka_admin.ACLOperation.ANY, kafka_admin.ACLPermissionType.ANY, any_resource
    )
    with pytest.raises(SecurityDisabledError):
        python_admin.describe_acls(any_acl)
    everything = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    acl = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        "t",
        confluent.ResourcePatternType.LITERAL,
        "User:a",
        "*",
        confluent.AclOperation.READ,
        confluent.AclPermissionType.ALLOW,
    )
    assert code_of(admin.create_acls([acl])[acl]) == SECURITY_DISABLED
    assert code_of(admin.delete_acls([everything])[everything]) == SECURITY_DISABLED


def test_on_one_broker_replicas_are_not_reassigned(python_admin: Any) -> None:
    assert python_admin.list_partition_reassignments() == {}
