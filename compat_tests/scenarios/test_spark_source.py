"""Spark reads topics in batches: which topics and partitions, from which offsets, in how many tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.scenarios.records import FIRST_TIMESTAMP_MS, Record, produce_with_confluent, sample_records
from compat_tests.scenarios.spark_kafka import SparkKafka, add_partitions, delete_records, numbers
from compat_tests.scenarios.transactions import TIMEOUT_S, transactional_producer

EARLIEST, LATEST = -2, -1
DEPRECATED_OFFSETS = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


@contextmanager
def setting(session: Any, name: str, value: str) -> Iterator[None]:
    session.conf.set(name, value)
    try:
        yield
    finally:
        session.conf.unset(name)


def test_spark_reads_what_clients_wrote(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    records = sample_records(100)
    produce_with_confluent(bootstrap, topic, records)
    frame = spark.read({"subscribe": topic, "includeHeaders": True})
    columns = ["offset", "key", "value", "unix_millis(timestamp) AS at", "timestampType", "headers"]
    rows = frame.selectExpr(*columns).orderBy("offset").collect()
    assert [(row["offset"], row["key"], row["value"], row["at"], row["timestampType"]) for row in rows] == [
        (record.offset, record.key, record.value, record.timestamp_ms, 0) for record in records
    ]
    assert [tuple((header["key"], bytes(header["value"])) for header in row["headers"] or ()) for row in rows] == [
        record.headers for record in records
    ]


@pytest.mark.parametrize("offsets_with", ["admin client", "consumer"])
def test_spark_chooses_topics_by_name_by_pattern_and_by_partition(
    bootstrap: str, topic: str, spark: SparkKafka, offsets_with: str
) -> None:
    create_topic(bootstrap, f"{topic}-a", 3)
    create_topic(bootstrap, f"{topic}-b", 1)
    produce_numbers(bootstrap, f"{topic}-a", range(30), 3)
    produce_numbers(bootstrap, f"{topic}-b", range(100, 110), 1)
    with setting(spark.session, DEPRECATED_OFFSETS, str(offsets_with == "consumer").lower()):
        both = [*range(30), *range(100, 110)]
        assert numbers(spark.read({"subscribe": f"{topic}-a,{topic}-b"})) == both
        assert numbers(spark.read({"subscribePattern": f"{topic}-[ab]"})) == both
        assigned = json.dumps({f"{topic}-a": [0, 2], f"{topic}-b": [0]})
        expected = [number for number in both if number >= 100 or number % 3 != 1]
        assert numbers(spark.read({"assign": assigned})) == expected


def test_spark_reads_between_offsets_of_each_partition(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 3)
    produce_numbers(bootstrap, topic, range(30), 3)
    start = json.dumps({topic: {"0": EARLIEST, "1": 4, "2": 0}})
    end = json.dumps({topic: {"0": 3, "1": LATEST, "2": 1}})
    rows = spark.read({"subscribe": topic, "startingOffsets": start, "endingOffsets": end})
    read = [(row["partition"], row["offset"]) for row in rows.orderBy("partition", "offset").collect()]
    assert read == [(0, 0), (0, 1), (0, 2), *((1, offset) for offset in range(4, 10)), (2, 0)]
    everything = spark.read({"subscribe": topic, "startingOffsets": "earliest", "endingOffsets": "latest"})
    assert numbers(everything) == list(range(30))


def record_at(number: int, second: int) -> Record:
    return Record(0, None, str(number).encode(), FIRST_TIMESTAMP_MS + second * 1000, ())


def test_spark_reads_between_timestamps(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    produce_with_confluent(bootstrap, topic, [record_at(number, number) for number in range(20)])

    def at(second: int) -> str:
        return str(FIRST_TIMESTAMP_MS + second * 1000)

    between = {"subscribe": topic, "startingTimestamp": at(5), "endingTimestamp": at(8)}
    assert numbers(spark.read(between)) == [5, 6, 7]
    by_partition = {
        "subscribe": topic,
        "startingOffsetsByTimestamp": json.dumps({topic: {"0": int(at(18))}}),
        "endingOffsetsByTimestamp": json.dumps({topic: {"0": int(at(100))}}),
    }
    assert numbers(spark.read(by_partition)) == [18, 19]
    after_the_end = {"subscribe": topic, "startingTimestamp": at(100)}
    with pytest.raises(Exception, match=r"(?i)no offset"):
        spark.read(after_the_end).collect()
    assert numbers(spark.read({**after_the_end, "startingOffsetsByTimestampStrategy": "latest"})) == []


def test_spark_splits_partitions_into_more_tasks(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(100), 2)
    whole = spark.read({"subscribe": topic})
    assert whole.rdd.getNumPartitions() == 2
    split = spark.read({"subscribe": topic, "minPartitions": 8})
    assert split.rdd.getNumPartitions() == 8
    assert numbers(split) == list(range(100))


def test_spark_reads_committed_records_up_to_the_first_open_transaction(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, topic, 1)
    writer = transactional_producer(bootstrap, f"{topic}-writer")
    number = 0
    for is_committed in (True, False, True, False):
        writer.begin_transaction()
        for _ in range(10):
            writer.produce(topic, str(number).encode(), partition=0)
            number += 1
        assert writer.flush(TIMEOUT_S) == 0
        (writer.commit_transaction if is_committed else writer.abort_transaction)(TIMEOUT_S)
    committed = [*range(10), *range(20, 30)]
    read_committed = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    assert numbers(spark.read(read_committed)) == committed
    assert numbers(spark.read({**read_committed, "minPartitions": 5})) == committed
    assert numbers(spark.read({"subscribe": topic})) == list(range(40))

    writer.begin_transaction()
    writer.produce(topic, b"40", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    produce_numbers(bootstrap, topic, [41], 1)
    assert numbers(spark.read(read_committed)) == committed
    writer.commit_transaction(TIMEOUT_S)
    assert numbers(spark.read(read_committed)) == [*committed, 40, 41]


def test_a_batch_read_of_deleted_records_fails_or_skips_them(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10), 1)
    delete_records(bootstrap, topic, [4])
    wanted = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}
    with pytest.raises(Exception, match=r"(?i)data.?loss|may have been lost|failOnDataLoss"):
        spark.read({**wanted, "failOnDataLoss": True}).collect()
    assert numbers(spark.read({**wanted, "failOnDataLoss": False})) == list(range(4, 10))


def test_a_read_with_a_group_id_commits_nothing(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    produce_numbers(bootstrap, topic, range(10), 1)
    assert numbers(spark.read({"subscribe": topic, "kafka.group.id": topic})) == list(range(10))
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        (committed,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    finally:
        consumer.close()
    assert committed.offset == confluent_kafka.OFFSET_INVALID


def test_a_read_sees_partitions_that_were_added(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(5), 1)
    assert numbers(spark.read({"subscribe": topic})) == list(range(5))
    add_partitions(bootstrap, topic, 4)
    produce_numbers(bootstrap, topic, range(5, 25), 4)
    assert numbers(spark.read({"subscribe": topic})) == list(range(25))


def test_a_read_of_a_missing_topic_names_the_topic(topic: str, spark: SparkKafka) -> None:
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        spark.read({"subscribe": topic}).collect()
