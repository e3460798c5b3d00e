"""Spark writes topics: columns of the sink, in batches and from a stream."""

from __future__ import annotations

import confluent_kafka
import pytest

from compat_tests.scenarios.groups import create_topic
from compat_tests.scenarios.records import consume_with_confluent
from compat_tests.scenarios.spark_kafka import SparkKafka, numbers


def test_clients_read_what_spark_wrote(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    frame = spark.session.range(0, 100, 1, 1).selectExpr("CAST(id AS STRING) AS key", "CONCAT('value ', id) AS value")
    spark.write(frame, {"topic": topic})
    records = consume_with_confluent(bootstrap, topic, 100)
    assert [(record.key, record.value) for record in records] == [
        (str(number).encode(), f"value {number}".encode()) for number in range(100)
    ]


def test_the_sink_writes_headers_and_tombstones(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    headers = "array(struct('a' AS key, CAST('1' AS BINARY) AS value), struct('b' AS key, NULL AS value))"
    frame = spark.session.sql(f"SELECT 'k' AS key, CAST(NULL AS STRING) AS value, {headers} AS headers")
    spark.write(frame, {"topic": topic, "includeHeaders": True})
    (record,) = consume_with_confluent(bootstrap, topic, 1)
    assert (record.key, record.value, record.headers) == (b"k", None, (("a", b"1"), ("b", None)))
    (row,) = spark.read({"subscribe": topic, "includeHeaders": True}).collect()
    assert [(header["key"], header["value"]) for header in row["headers"]] == [("a", bytearray(b"1")), ("b", None)]


def test_each_row_names_its_topic_and_partition(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    for name in ("a", "b"):
        create_topic(bootstrap, f"{topic}-{name}", 3)
    columns = (
        f"CONCAT('{topic}-', IF(id < 10, 'a', 'b')) AS topic",
        "CAST(id % 3 AS INT) AS partition",
        "CAST(id AS STRING) AS value",
    )
    spark.write(spark.session.range(20).selectExpr(*columns), {})
    number = "CAST(CAST(value AS STRING) AS INT) AS value"
    rows = spark.read({"subscribePattern": f"{topic}-.*"}).selectExpr("topic", "partition", number)
    assert sorted((row["value"], row["topic"][-1], row["partition"]) for row in rows.collect()) == [
        (number, "a" if number < 10 else "b", number % 3) for number in range(20)
    ]


def test_a_batch_of_compressed_records_is_read_back(topic: str, spark: SparkKafka) -> None:
    for index, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        part = spark.session.range(index * 100, index * 100 + 100).selectExpr("CAST(id AS STRING) AS value")
        spark.write(part, {"topic": topic, "kafka.compression.type": codec})
    assert numbers(spark.read({"subscribe": topic})) == list(range(400))


def test_a_partition_that_does_not_exist_fails_the_batch(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 1)
    frame = spark.session.sql("SELECT 5 AS partition, 'value' AS value")
    with pytest.raises(Exception, match=r"(?i)partition"):
        spark.write(frame, {"topic": topic, "kafka.max.block.ms": 1000})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=30) == (0, 0)
    finally:
        consumer.close()
