"""Consumer groups with librdkafka: members join, leave and crash, and committed offsets are kept."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.scenarios.groups import DEADLINE_S, Member, create_topic, poll_until, produce_numbers, same_split

PARTITIONS = 6

CRASHING_MEMBER = """
import sys, time
from compat_tests.scenarios.groups import Member
member = Member(sys.argv[1], sys.argv[2], sys.argv[3])
while True:
    member.poll()
    if member.partitions:
        print("joined", flush=True)
"""


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions_as_they_join_and_leave(bootstrap: str, topic: str, assignor: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    members = [Member(bootstrap, topic, topic, partition_assignment_strategy=assignor)]
    poll_until(members, lambda: same_split(members, [6], PARTITIONS), "one member has everything")
    members.append(Member(bootstrap, topic, topic, partition_assignment_strategy=assignor))
    poll_until(members, lambda: same_split(members, [3, 3], PARTITIONS), "two members share")
    members.append(Member(bootstrap, topic, topic, partition_assignment_strategy=assignor))
    poll_until(members, lambda: same_split(members, [2, 2, 2], PARTITIONS), "three members share")
    produce_numbers(bootstrap, topic, range(600), PARTITIONS)
    poll_until(members, lambda: sum(len(member.seen) for member in members) >= 600, "every record is seen")
    assert sorted(number for member in members for number in member.seen) == list(range(600))
    members.pop(0).close()
    poll_until(members, lambda: same_split(members, [3, 3], PARTITIONS), "the rest share again")
    for member in members:
        member.close()


def test_the_partitions_of_a_crashed_member_are_reassigned(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    survivor = Member(bootstrap, topic, topic)
    poll_until([survivor], lambda: len(survivor.partitions) == PARTITIONS, "the first has everything")
    command = [sys.executable, "-c", CRASHING_MEMBER, bootstrap, topic, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        poll_until([survivor], lambda: len(survivor.partitions) == PARTITIONS // 2, "the second has its share")
        process.kill()
    poll_until([survivor], lambda: len(survivor.partitions) == PARTITIONS, "the first has everything again")
    survivor.close()


def test_a_group_continues_from_its_committed_offsets(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(100), 2)
    first = Member(bootstrap, topic, topic)
    poll_until([first], lambda: len(first.seen) >= 100, "the first reads everything")
    first.consumer.commit(asynchronous=False)
    assert first.committed(topic, 2) == [50, 50]
    first.close()
    produce_numbers(bootstrap, topic, range(100, 120), 2)
    second = Member(bootstrap, topic, topic)
    poll_until([second], lambda: len(second.seen) >= 20, "the second reads the rest")
    assert sorted(second.seen) == list(range(100, 120))
    second.close()


def test_the_metadata_of_a_commit_is_returned(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    member = Member(bootstrap, topic, topic)
    poll_until([member], lambda: bool(member.partitions), "it has joined")
    member.consumer.commit(offsets=[TopicPartition(topic, 0, 7, "a note — ünïcode")], asynchronous=False)
    (found,) = member.consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert (found.offset, found.metadata) == (7, "a note — ünïcode")
    member.close()


def test_offsets_are_committed_automatically(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10), 1)
    member = Member(bootstrap, topic, topic, enable_auto_commit=True, auto_commit_interval_ms=100)
    poll_until([member], lambda: len(member.seen) >= 10 and member.committed(topic, 1) == [10], "it commits by itself")
    member.close()


def test_a_static_member_rejoins_without_a_rebalance(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 4)
    options = {"session_timeout_ms": 30_000}
    stays = Member(bootstrap, topic, topic, group_instance_id="stays", **options)
    goes = Member(bootstrap, topic, topic, group_instance_id="goes", **options)
    both = [stays, goes]
    poll_until(both, lambda: same_split(both, [2, 2], 4), "two members share")
    had, rebalances = goes.partitions, stays.rebalances
    goes.close()
    back = Member(bootstrap, topic, topic, group_instance_id="goes", **options)
    poll_until([stays, back], lambda: bool(back.partitions), "it is back")
    assert back.partitions == had
    assert stays.rebalances == rebalances
    stays.close()
    back.close()


def test_a_second_process_with_the_same_instance_id_fences_the_first(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    first = Member(bootstrap, topic, topic, group_instance_id="same")
    poll_until([first], lambda: bool(first.partitions), "the first has joined")
    second = Member(bootstrap, topic, topic, group_instance_id="same")
    poll_until([second], lambda: bool(second.partitions), "the second has joined")
    with pytest.raises((AssertionError, KafkaException), match=r"FENCED_INSTANCE_ID|fenced"):
        poll_until([first], lambda: False, "the first is fenced")
    second.close()


def test_an_admin_sees_resets_and_deletes_a_group(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    member = Member(bootstrap, topic, topic, client_id="test-client")
    poll_until([member], lambda: len(member.seen) >= 20, "it reads everything")
    member.consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups([topic])[topic].result(DEADLINE_S)
    assert described.state.name == "STABLE"
    assert [(member.client_id, len(member.assignment.topic_partitions)) for member in described.members] == [
        ("test-client", 2)
    ]
    member.close()
    listed = {group.group_id: group.state.name for group in admin.list_consumer_groups().result(DEADLINE_S).valid}
    assert listed[topic] == "EMPTY"
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([wanted])[topic].result(DEADLINE_S)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(DEADLINE_S)
    assert sorted((partition.partition, partition.offset) for partition in found.topic_partitions) == [(0, 3), (1, 10)]
    admin.delete_consumer_groups([topic])[topic].result(DEADLINE_S)
    assert topic not in {group.group_id for group in admin.list_consumer_groups().result(DEADLINE_S).valid}
