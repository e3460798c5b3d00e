"""All methods of two admin clients: each has a scenario here or elsewhere, or a reason why it has none.

The methods are read from the classes, so that methods of new releases are noticed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka import admin as confluent_admin
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition
from kafka import admin as kafka_admin
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartitionReplica

from compat_tests.scenarios.conftest import code_of
from compat_tests.scenarios.groups import Member, poll_until
from kbroker.protocol.registry import APIS

confluent: Any = confluent_admin
python: Any = kafka_admin

FIRST_TIME_MS: Final = 1_700_000_000_000
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, RESOURCE_NOT_FOUND = 1, 3, 91
WAIT_SECONDS: Final = 10.0

HERE: Final = "test_admin_clients"
CONFIGS: Final = "test_admin_configs"
TOPICS: Final = "test_admin_topics"
GROUPS: Final = "test_groups_confluent"
TRANSACTIONS: Final = "test_transactions_python"

NO_REQUEST: Final = "sends nothing"
QUORUM: Final = "only KRaft has a metadata quorum; kbroker does not serve the API"

# Reason -> APIs that kbroker does not serve. When kbroker serves one, its methods need a scenario.
REASONS: Final = {
    NO_REQUEST: (),
    QUORUM: ("DescribeQuorum",),
}

# Method -> module of its scenario, or the reason why there is none.
CONFLUENT_METHODS: Final = {
    "alter_configs": CONFIGS,
    "alter_consumer_group_offsets": GROUPS,
    "alter_user_scram_credentials": "test_scram_credentials",
    "cluster_id": HERE,
    "create_acls": TOPICS,
    "create_partitions": TOPICS,
    "create_topics": HERE,
    "delete_acls": TOPICS,
    "delete_consumer_groups": GROUPS,
    "delete_records": HERE,
    "delete_topics": HERE,
    "describe_acls": HERE,
    "describe_cluster": TOPICS,
    "describe_configs": CONFIGS,
    "describe_consumer_groups": GROUPS,
    "describe_topics": TOPICS,
    "describe_user_scram_credentials": HERE,
    "elect_leaders": TOPICS,
    "incremental_alter_configs": CONFIGS,
    "list_consumer_group_offsets": GROUPS,
    "list_consumer_groups": GROUPS,
    "list_groups": HERE,
    "list_offsets": HERE,
    "list_topics": HERE,
    "poll": NO_REQUEST,
    "set_sasl_credentials": NO_REQUEST,
}

PYTHON_METHODS: Final = {
    "abort_transaction": TRANSACTIONS,
    "alter_configs": CONFIGS,
    "alter_group_offsets": HERE,
    "alter_partition_reassignments": HERE,
    "alter_replica_log_dirs": HERE,
    "alter_user_scram_credentials": "test_scram_credentials",
    "api_versions": HERE,
    "close": NO_REQUEST,
    "create_acls": HERE,
    "create_partitions": HERE,
    "create_topics": HERE,
    "delete_acls": HERE,
    "delete_group_offsets": HERE,
    "delete_groups": HERE,
    "delete_records": HERE,
    "delete_topics": HERE,
    "describe_acls": TOPICS,
    "describe_cluster": HERE,
    "describe_configs": CONFIGS,
    "describe_features": HERE,
    "describe_groups": HERE,
    "describe_log_dirs": TOPICS,
    "describe_metadata_quorum": QUORUM,
    "describe_producers": HERE,
    "describe_topic_partitions": TOPICS,
    "describe_topics": HERE,
    "describe_transactions": TRANSACTIONS,
    "describe_user_scram_credentials": HERE,
    "elect_leaders": HERE,
    "find_hanging_transactions": TRANSACTIONS,
    "get_broker_version_data": HERE,
    "list_config_resources": CONFIGS,
    "list_group_offsets": HERE,
    "list_groups": HERE,
    "list_partition_offsets": HERE,
    "list_partition_reassignments": TOPICS,
    "list_topics": HERE,
    "list_transactions": TRANSACTIONS,
    "remove_group_members": HERE,
    "reset_configs": CONFIGS,
    "reset_group_offsets": HERE,
    "update_features": HERE,
    "wait_for_topics": HERE,
}


def methods_of(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))}


@pytest.mark.parametrize(
    ("client", "methods", "name"),
    [(confluent.AdminClient, CONFLUENT_METHODS, "admin"), (KafkaAdminClient, PYTHON_METHODS, "python_admin")],
    ids=["confluent-kafka", "kafka-python"],
)
def test_every_method_has_a_scenario_or_a_reason(client: type, methods: dict[str, str], name: str) -> None:
    assert methods_of(client) == methods.keys()
    for method, where in methods.items():
        if where in REASONS:
            continue
        text = Path(__file__).with_name(f"{where}.py").read_text()
        assert re.search(rf"\b{name}\.{method}\(", text), f"{where} does not call {method}"


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_holds_only_while_kbroker_does_not_serve_the_api(reason: str) -> None:
    served = {api.name for api in APIS if api.is_served()}
    assert served.isdisjoint(REASONS[reason])


@pytest.fixture
def created(admin: Any, bootstrap: str, topic: str) -> str:
    """Returns a topic of two partitions with five records each, one millisecond apart."""
    admin.create_topics([confluent.NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(10):
        producer.produce(topic, b"v", partition=number % 2, timestamp=FIRST_TIME_MS + number)
    assert producer.flush(WAIT_SECONDS) == 0
    return topic


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits for a condition: Apache Kafka responds before a change is visible everywhere."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestConfluent:
    def test_the_cluster_and_its_topics_are_listed(self, admin: Any, created: str) -> None:
        assert len(admin.cluster_id()) == 22
        listed = admin.list_topics(timeout=WAIT_SECONDS)
        assert (listed.orig_broker_id, listed.controller_id, list(listed.brokers)) == (1, 1, [1])
        partitions = listed.topics[created].partitions
        assert {
            number: (partition.leader, partition.replicas, partition.isrs) for number, partition in partitions.items()
        } == {
            0: (1, [1], [1]),
            1: (1, [1], [1]),
        }

    def test_a_topic_is_deleted_once(self, admin: Any, created: str) -> None:
        assert code_of(admin.delete_topics([created])[created]) == 0
        eventually(lambda: created not in admin.list_topics(timeout=WAIT_SECONDS).topics)
        assert code_of(admin.delete_topics([created])[created]) == UNKNOWN_TOPIC_OR_PARTITION

    def test_offsets_are_listed_by_end_time_and_beginning(self, admin: Any, created: str) -> None:
        spec = confluent.OffsetSpec
        at = FIRST_TIME_MS + 4
        for wanted, expected in (
            (spec.latest(), (5, -1)),
            (spec.earliest(), (0, -1)),
            (spec.for_timestamp(at), (2, at)),
            (spec.max_timestamp(), (4, FIRST_TIME_MS + 8)),
            (spec.for_timestamp(FIRST_TIME_MS + 100), (-1, -1)),
        ):
            (future,) = admin.list_offsets({TopicPartition(created, 0): wanted}).values()
            assert (future.result().offset, future.result().timestamp) == expected

    def test_records_are_deleted_up_to_an_offset(self, admin: Any, created: str) -> None:
        wanted = [TopicPartition(created, 0, 3), TopicPartition(created, 1, 99)]
        futures = {key.partition: future for key, future in admin.delete_records(wanted).items()}
        assert futures[0].result().low_watermark == 3
        assert code_of(futures[1]) == OFFSET_OUT_OF_RANGE
        earliest = admin.list_offsets({TopicPartition(created, 0): confluent.OffsetSpec.earliest()})
        assert [future.result().offset for future in earliest.values()] == [3]

    def test_groups_are_listed_by_list_groups(self, admin: Any, bootstrap: str, created: str) -> None:
        member = Member(bootstrap, created, created, client_id="test-client")
        poll_until([member], lambda: len(member.partitions) == 2, "it has joined")
        with pytest.warns(DeprecationWarning, match="list_consumer_groups"):
            (listed,) = admin.list_groups(created, timeout=WAIT_SECONDS)
        assert (listed.id, listed.state, listed.protocol_type, listed.error) == (created, "Stable", "consumer", None)
        assert [(member.client_id, member.client_host) for member in listed.members] == [("test-client", "/127.0.0.1")]
        assert listed.broker.id == 1
        member.close()

    def test_users_have_no_scram_credentials(self, admin: Any) -> None:
        assert admin.describe_user_scram_credentials().result() == {}
        assert code_of(admin.describe_user_scram_credentials(["unknown"])["unknown"]) == RESOURCE_NOT_FOUND

    def test_without_an_authorizer_there_are_no_acls(self, admin: Any) -> None:
        """librdkafka returns an empty list on SECURITY_DISABLED; kafka-python raises, see test_admin_topics."""
        everything = confluent.AclBindingFilter(
            confluent.ResourceType.ANY,
            None,
            confluent.ResourcePatternType.ANY,
            None,
            None,
            confluent.AclOperation.ANY,
            confluent.AclPermissionType.ANY,
        )
        assert admin.describe_acls(everything).result() == []


class TestKafkaPython:
    def test_topics_are_created_awaited_described_grown_and_deleted(self, python_admin: Any, topic: str) -> None:
        made = python_admin.create_topics([python.NewTopic(topic, 2, 1)])["topics"][0]
        assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 2, 1)
        assert made["configs"]["cleanup.policy"]["value"] == "delete"
        again = python_admin.create_topics([python.NewTopic(topic, 2, 1)], raise_errors=False)["topics"][0]
        assert again["error_code"] == kafka_errors.TopicAlreadyExistsError.errno
        python_admin.wait_for_topics([topic])
        assert topic in python_admin.list_topics()
        (described,) = python_admin.describe_topics([topic])
        assert sorted(partition["partition_index"] for partition in described["partitions"]) == [0, 1]
        python_admin.create_partitions({topic: python.NewPartitions(3)})
        eventually(lambda: len(python_admin.describe_topics([topic])[0]["partitions"]) == 3)
        (deleted,) = python_admin.delete_topics([topic])["topics"]
        assert (deleted["name"], deleted["error_code"]) == (topic, 0)
        (missing,) = python_admin.delete_topics([topic], raise_errors=False)["topics"]
        assert missing["error_code"] == UNKNOWN_TOPIC_OR_PARTITION
        assert missing["error_message"]

    def test_the_cluster_is_described(self, python_admin: Any, bootstrap: str) -> None:
        described = python_admin.describe_cluster()
        (broker,) = described["brokers"]
        assert (f"{broker['host']}:{broker['port']}", broker["is_fenced"]) == (bootstrap, False)
        assert set(described["authorized_operations"]) == {
            "CREATE",
            "ALTER",
            "DESCRIBE",
            "CLUSTER_ACTION",
            "DESCRIBE_CONFIGS",
            "ALTER_CONFIGS",
            "IDEMPOTENT_WRITE",
        }
        assert {"METADATA", "PRODUCE", "FETCH"} <= {key.name.upper() for key in python_admin.api_versions()}
        assert "4.1" in str(python_admin.get_broker_version_data(1))

    def test_features_are_described_and_an_unknown_one_is_refused(self, python_admin: Any) -> None:
        """Checks that finalized versions are within supported ones; the brokers have different features."""
        for feature in python_admin.describe_features().values():
            first, last = feature["supported"]
            assert first <= feature.get("finalized", (first, last))[1] <= last
        with pytest.raises(kafka_errors.InvalidUpdateVersionError):
            python_admin.update_features({"no.such.feature": 1}, validate_only=True)

    def test_offsets_of_partitions_and_producers(self, python_admin: Any, created: str) -> None:
        first, second = PythonPartition(created, 0), PythonPartition(created, 1)
        found = python_admin.list_partition_offsets(
            {first: python.OffsetSpec.LATEST, second: python.OffsetSpec.MAX_TIMESTAMP}
        )
        assert (found[first].offset, found[second].offset, found[second].timestamp) == (5, 4, FIRST_TIME_MS + 9)
        (producer,) = python_admin.describe_producers([first])[first].active_producers
        assert (producer.last_sequence, producer.last_timestamp) == (4, FIRST_TIME_MS + 8)
        assert (producer.producer_epoch, producer.current_transaction_start_offset) == (0, -1)
        deleted = python_admin.delete_records({first: 2})
        assert (deleted[first]["low_watermark"], deleted[first]["error_code"]) == (2, 0)
        with pytest.raises(kafka_errors.OffsetOutOfRangeError):
            python_admin.delete_records({first: 99})

    def test_on_one_broker_leaders_and_replicas_do_not_move(self, python_admin: Any, created: str) -> None:
        partition = PythonPartition(created, 0)
        (elected,) = python_admin.elect_leaders(0, {created: [0]}, raise_errors=False).replica_election_results
        assert elected.partition_result[0].error_code == kafka_errors.ElectionNotNeededError.errno
        reassign = python_admin.alter_partition_reassignments
        assert python_admin.alter_partition_reassignments({partition: [1]}) == {partition: None}
        assert reassign({partition: [7]}) == {partition: kafka_errors.InvalidReplicationAssignmentError}
        assert reassign({partition: None}) == {partition: kafka_errors.NoReassignmentInProgressError}

    def test_a_replica_moves_only_to_a_directory_of_its_broker(self, python_admin: Any, created: str) -> None:
        replica = TopicPartitionReplica(created, 0, 1)
        moved = python_admin.alter_replica_log_dirs({replica: "/nowhere"})
        assert moved == {replica: kafka_errors.LogDirNotFoundError}
        (directory,) = python_admin.describe_log_dirs()[0]["log_dirs"]
        stays = python_admin.alter_replica_log_dirs({replica: directory["log_dir"]})
        assert stays == {replica: kafka_errors.NoError}

    def test_offsets_of_a_group_are_altered_listed_reset_and_deleted(self, python_admin: Any, created: str) -> None:
        first, second = PythonPartition(created, 0), PythonPartition(created, 1)
        wanted = {first: OffsetAndMetadata(3, "why", -1), second: OffsetAndMetadata(1, "", -1)}
        assert set(python_admin.alter_group_offsets(created, wanted).values()) == {kafka_errors.NoError}
        assert python_admin.list_group_offsets({created: None})[created] == wanted
        reset = python_admin.reset_group_offsets(created, {first: python.OffsetSpec.LATEST})
        assert reset[first] == {"error": kafka_errors.NoError, "offset": 5}
        assert python_admin.delete_group_offsets(created, [second]) == {second: kafka_errors.NoError}
        left = python_admin.list_group_offsets({created: [first, second]})[created]
        assert left[first].offset == 5
        assert second not in left or left[second].offset == -1

    def test_groups_are_listed_described_and_deleted(self, python_admin: Any, created: str) -> None:
        python_admin.alter_group_offsets(created, {PythonPartition(created, 0): OffsetAndMetadata(3, "", -1)})
        expected = {"group_id": created, "protocol_type": "", "group_state": "Empty", "group_type": "classic"}
        assert expected in python_admin.list_groups()
        assert expected in python_admin.list_groups(states_filter=["Empty"], types_filter=["classic"])
        assert expected not in python_admin.list_groups(states_filter=["Stable"])
        described = python_admin.describe_groups([created], include_authorized_operations=True)[created]
        assert (described["group_state"], described["members"], described["error"]) == ("Empty", [], None)
        assert {"READ", "DELETE", "DESCRIBE"} <= set(described["authorized_operations"])
        assert python_admin.delete_groups([created]) == {created: "OK"}
        assert python_admin.delete_groups([created]) == {created: "GroupIdNotFoundError"}
        gone = python_admin.describe_groups([created], include_authorized_operations=True)[created]
        assert (gone["group_state"], gone["authorized_operations"]) == ("Dead", None)

    def test_a_static_member_is_removed(self, python_admin: Any, bootstrap: str, created: str) -> None:
        member = Member(bootstrap, created, created, group_instance_id="shelf")
        poll_until([member], lambda: len(member.partitions) == 2, "it has joined")
        described = python_admin.describe_groups([created])[created]
        assert [member["group_instance_id"] for member in described["members"]] == ["shelf"]
        removed = python_admin.remove_group_members(created, [python.MemberToRemove(group_instance_id="shelf")])
        assert removed == {"shelf": kafka_errors.NoError}
        stranger = python_admin.remove_group_members(created, [python.MemberToRemove(member_id="unknown")])
        assert stranger == {"unknown": kafka_errors.UnknownMemberIdError}
        member.close()

    def test_users_have_no_scram_credentials(self, python_admin: Any) -> None:
        assert python_admin.describe_user_scram_credentials() == {}
        described = python_admin.describe_user_scram_credentials(["unknown"])["unknown"]
        assert described["error"]
        assert described["credential_infos"] == []

    def test_without_an_authorizer_acls_cannot_be_changed(self, python_admin: Any) -> None:
        pattern = python.ResourcePattern(python.ResourceType.TOPIC, "t", python.ACLResourcePatternType.LITERAL)
        acl = python.ACL("User:a", "*", python.ACLOperation.READ, python.ACLPermissionType.ALLOW, pattern)
        created = python_admin.create_acls([acl])
        assert created == {"succeeded": [], "failed": [kafka_errors.SecurityDisabledError]}
        ((_, _, deleted),) = python_admin.delete_acls([acl])
        assert deleted is kafka_errors.SecurityDisabledError
