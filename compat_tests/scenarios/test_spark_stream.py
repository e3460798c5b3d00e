"""Spark reads topics as a stream: triggers, limits, checkpoints, and topics that change while the stream runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.scenarios.records import (
    FIRST_TIMESTAMP_MS,
    Record,
    consume_with_confluent,
    produce_with_confluent,
    sample_records,
)
from compat_tests.scenarios.spark_kafka import SparkKafka, add_partitions, delete_records, delete_topic, numbers
from compat_tests.scenarios.transactions import TIMEOUT_S, transactional_producer

DATA_LOSS = "(?i)data.?loss|may have been lost"


def rows_in_batches(query: Any) -> list[int]:
    """Returns the number of records in each batch that had any."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_stream_continues_from_its_checkpoint(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    records = sample_records(60)
    for part in (records[:40], records[40:]):
        produce_with_confluent(bootstrap, topic, part)
        spark.finish(spark.start_copy(spark.stream({"subscribe": topic}), f"{topic}-copy", availableNow=True))
    copies = consume_with_confluent(bootstrap, f"{topic}-copy", 60)
    assert [(record.key, record.value) for record in copies] == [(record.key, record.value) for record in records]


def test_a_stream_from_latest_reads_what_is_written_after_its_start(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    produce_numbers(bootstrap, topic, range(10), 1)
    query = spark.start_memory(spark.stream({"subscribe": topic, "startingOffsets": "latest"}))
    query.processAllAvailable()
    produce_numbers(bootstrap, topic, range(10, 15), 1)
    query.processAllAvailable()
    assert numbers(spark.rows_of(query)) == list(range(10, 15))


def test_a_stream_starts_at_given_offsets_or_timestamps(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    records = [Record(0, None, str(number).encode(), FIRST_TIMESTAMP_MS + number * 1000, ()) for number in range(20)]
    produce_with_confluent(bootstrap, topic, records)
    by_offset = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 17}})}
    by_timestamp = {"subscribe": topic, "startingTimestamp": FIRST_TIMESTAMP_MS + 16_500}
    for options in (by_offset, by_timestamp):
        query = spark.finish(spark.start_memory(spark.stream(options), availableNow=True))
        assert numbers(spark.rows_of(query)) == [17, 18, 19]


def test_batches_hold_no_more_than_the_limit_and_report_their_lag(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(70), 2)
    query = spark.copy_to_files({"subscribe": topic, "maxOffsetsPerTrigger": 20})
    assert rows_in_batches(query) == [20, 20, 20, 10]
    assert numbers(spark.files()) == list(range(70))
    lags = [int(progress["sources"][0]["metrics"]["maxOffsetsBehindLatest"]) for progress in query.recentProgress]
    assert lags[:4] == [25, 15, 5, 0]


def test_available_now_leaves_what_arrives_later_to_the_next_run(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    produce_numbers(bootstrap, topic, range(20), 1)
    read: list[list[int]] = []

    def read_and_write_more(frame: Any, batch_id: int) -> None:
        read.append(numbers(frame))
        produce_numbers(bootstrap, topic, [20 + batch_id], 1)

    def run_once() -> None:
        stream = spark.stream({"subscribe": topic, "maxOffsetsPerTrigger": 10})
        writer = stream.writeStream.foreachBatch(read_and_write_more).trigger(availableNow=True)
        spark.finish(writer.option("checkpointLocation", str(spark.checkpoint)).start())

    run_once()
    assert read == [list(range(10)), list(range(10, 20))]
    run_once()
    assert read[2:] == [[20, 21]]


def test_continuous_processing_copies_and_continues(bootstrap: str, topic: str, spark: SparkKafka) -> None:
    create_topic(bootstrap, topic, 1)
    create_topic(bootstrap, f"{topic}-copy", 1)
    for first in (0, 100):
        produce_numbers(bootstrap, topic, range(first, first + 50), 1)
        query = spark.start_copy(spark.stream({"subscribe": topic}), f"{topic}-copy", continuous="200 milliseconds")
        produce_numbers(bootstrap, topic, range(first + 50, first + 100), 1)
        # A continuous query may copy records again that it copied after its last epoch, but loses none.
        wait_for_copies(bootstrap, f"{topic}-copy", first + 100, query)
        query.stop()
    copied = [int(record.value or b"") for record in consume_with_confluent(bootstrap, f"{topic}-copy", 200)]
    assert sorted(set(copied)) == list(range(max(copied) + 1))


def wait_for_copies(bootstrap: str, topic: str, count: int, query: Any) -> None:
    assert len(consume_with_confluent(bootstrap, topic, count)) == count, query.exception()


def test_a_stream_of_committed_records_passes_aborted_ones_and_markers(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, topic, 1)
    writer = transactional_producer(bootstrap, f"{topic}-writer")

    def write(first: int, *, is_committed: bool) -> None:
        writer.begin_transaction()
        for number in range(first, first + 10):
            writer.produce(topic, str(number).encode(), partition=0)
        assert writer.flush(TIMEOUT_S) == 0
        (writer.commit_transaction if is_committed else writer.abort_transaction)(TIMEOUT_S)

    read_committed = {"subscribe": topic, "kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": 7}
    query = spark.start_memory(spark.stream(read_committed))
    write(0, is_committed=True)
    write(10, is_committed=False)
    query.processAllAvailable()
    assert numbers(spark.rows_of(query)) == list(range(10))
    write(20, is_committed=True)
    query.processAllAvailable()
    assert numbers(spark.rows_of(query)) == [*range(10), *range(20, 30)]
    for first in (30, 40, 50):
        write(first, is_committed=False)
    query.processAllAvailable()
    write(60, is_committed=True)
    query.processAllAvailable()
    assert numbers(spark.rows_of(query)) == [*range(10), *range(20, 30), *range(60, 70)]


def test_a_running_stream_reads_new_partitions_and_new_topics_from_their_start(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, f"{topic}-a", 1)
    produce_numbers(bootstrap, f"{topic}-a", range(10), 1)
    query = spark.start_memory(spark.stream({"subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}))
    query.processAllAvailable()
    add_partitions(bootstrap, f"{topic}-a", 3)
    create_topic(bootstrap, f"{topic}-b", 2)
    produce_numbers(bootstrap, f"{topic}-a", range(10, 40), 3)
    produce_numbers(bootstrap, f"{topic}-b", range(40, 60), 2)
    query.processAllAvailable()
    assert numbers(spark.rows_of(query)) == list(range(10, 60))


def test_a_stream_survives_the_deletion_of_a_topic_unless_it_fails_on_data_loss(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    for name in ("a", "b"):
        create_topic(bootstrap, f"{topic}-{name}", 1)
    produce_numbers(bootstrap, f"{topic}-a", range(10), 1)
    produce_numbers(bootstrap, f"{topic}-b", range(10, 20), 1)
    pattern = {"subscribePattern": f"{topic}-.*"}
    tolerant = spark.start_memory(spark.stream({**pattern, "failOnDataLoss": False}))
    strict = spark.start_memory(spark.stream({**pattern, "failOnDataLoss": True}))
    tolerant.processAllAvailable()
    strict.processAllAvailable()
    delete_topic(bootstrap, f"{topic}-a")
    produce_numbers(bootstrap, f"{topic}-b", range(20, 30), 1)
    tolerant.processAllAvailable()
    assert numbers(spark.rows_of(tolerant)) == list(range(30))
    with pytest.raises(Exception, match=DATA_LOSS):
        strict.processAllAvailable()


def test_a_stream_resumed_after_its_topic_was_created_again_fails_or_continues(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10), 1)
    tolerant = {"subscribe": topic, "failOnDataLoss": False}
    spark.copy_to_files(tolerant)
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10, 15), 1)
    spark.copy_to_files(tolerant)
    produce_numbers(bootstrap, topic, range(15, 30), 1)
    spark.copy_to_files(tolerant)
    # The checkpoint has no topic id: the stream continues at the offset that the new topic has reached.
    assert numbers(spark.files()) == [*range(10), *range(15, 30)]
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(5), 1)
    with pytest.raises(Exception, match=DATA_LOSS):
        spark.copy_to_files({"subscribe": topic, "failOnDataLoss": True})


def test_a_stream_resumed_after_its_records_were_deleted_fails_or_continues(
    bootstrap: str, topic: str, spark: SparkKafka
) -> None:
    create_topic(bootstrap, topic, 1)
    produce_numbers(bootstrap, topic, range(10), 1)
    spark.copy_to_files({"subscribe": topic})
    produce_numbers(bootstrap, topic, range(10, 20), 1)
    delete_records(bootstrap, topic, [15])
    with pytest.raises(Exception, match=DATA_LOSS):
        spark.copy_to_files({"subscribe": topic, "failOnDataLoss": True})
    assert numbers(spark.files()) == list(range(10))
    spark.copy_to_files({"subscribe": topic, "failOnDataLoss": False})
    assert numbers(spark.files()) == [*range(10), *range(15, 20)]
