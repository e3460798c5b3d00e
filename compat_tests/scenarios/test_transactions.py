"""Transactions of confluent-kafka: commits, aborts, zombies, and exactly-once copies."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from compat_tests.scenarios.consumer_groups import ConsumerMember
from compat_tests.scenarios.groups import Member, create_topic, poll_until, produce_numbers
from compat_tests.scenarios.transactions import TIMEOUT_S, committed_offset, read, transactional_producer


def send(producer: Any, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def test_committed_records_are_read_aborted_and_open_ones_are_not(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    producer = transactional_producer(bootstrap, topic)
    for number, end in enumerate(("commit", "abort", "commit", "abort", "open")):
        producer.begin_transaction()
        send(producer, topic, f"{end}{number}", partition=0)
        send(producer, topic, f"{end}{number}", partition=1)
        if end == "commit":
            producer.commit_transaction(TIMEOUT_S)
        elif end == "abort":
            producer.abort_transaction(TIMEOUT_S)
    assert read(bootstrap, topic, 2) == ["commit0", "commit2"] * 2
    everything = ["commit0", "abort1", "commit2", "abort3", "open4"]
    assert read(bootstrap, topic, 2, level="read_uncommitted") == everything * 2
    producer.abort_transaction(TIMEOUT_S)
    send(confluent_kafka.Producer({"bootstrap.servers": bootstrap}), topic, "plain")
    assert read(bootstrap, topic, 1) == ["commit0", "commit2", "plain"]


def test_a_zombie_is_fenced(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    zombie = transactional_producer(bootstrap, topic)
    zombie.begin_transaction()
    send(zombie, topic, "zombie")
    successor = transactional_producer(bootstrap, topic)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(TIMEOUT_S)
    error: Any = caught.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    successor.begin_transaction()
    send(successor, topic, "successor")
    successor.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == ["successor"]


def test_a_timeout_that_is_too_long_is_refused(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 900_001}
    producer: Any = confluent_kafka.Producer(settings)
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(TIMEOUT_S)
    error: Any = caught.value.args[0]
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("kind", [Member, ConsumerMember])
def test_every_number_is_copied_once(bootstrap: str, topic: str, kind: type[Member]) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(bootstrap, source, 2)
    create_topic(bootstrap, target, 2)
    produce_numbers(bootstrap, source, range(20), 2)
    producer = transactional_producer(bootstrap, topic)
    member = kind(bootstrap, topic, source, isolation_level="read_committed")
    poll_until([member], lambda: len(member.seen) == 20, "it reads everything")
    positions = member.consumer.position(member.consumer.assignment())
    assert sorted(position.offset for position in positions) == [10, 10]
    for is_commit in (False, True):
        producer.begin_transaction()
        for number in member.seen:
            producer.produce(target, str(number).encode(), partition=number % 2)
        producer.send_offsets_to_transaction(positions, member.consumer.consumer_group_metadata(), TIMEOUT_S)
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
            assert member.committed(source, 2) == [confluent_kafka.OFFSET_INVALID] * 2
    assert member.committed(source, 2) == [10, 10]
    assert sorted(map(int, read(bootstrap, target, 2))) == list(range(20))
    member.close()
    successor = kind(bootstrap, topic, source, isolation_level="read_committed")
    produce_numbers(bootstrap, source, [20], 2)
    poll_until([successor], lambda: bool(successor.seen), "it goes on")
    assert successor.seen == [20]
    successor.close()


def test_a_member_of_an_old_generation_cannot_commit(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(3), 1)
    producer = transactional_producer(bootstrap, topic)
    member = Member(bootstrap, topic, topic)
    poll_until([member], lambda: len(member.seen) == 3, "it reads everything")
    old = member.consumer.consumer_group_metadata()
    member.close()
    other = Member(bootstrap, topic, topic)
    poll_until([other], lambda: len(other.seen) == 3, "the other reads everything")
    producer.begin_transaction()
    offsets = [confluent_kafka.TopicPartition(topic, 0, 3)]
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction(offsets, old, TIMEOUT_S)
    error: Any = caught.value.args[0]
    assert error.txn_requires_abort()
    producer.abort_transaction(TIMEOUT_S)
    other.close()
    assert committed_offset(bootstrap, topic, topic) == confluent_kafka.OFFSET_INVALID
