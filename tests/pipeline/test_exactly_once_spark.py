"""The exactly-once sink on Spark: streams through foreachBatch, batches through df.write, failing drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kbroker.errors import UserError
from kbroker.testing import Broker
from tests.cluster.conftest import RunningCluster
from tests.pipeline.committed_records import read_committed, values_of

pytest.importorskip("pyspark", reason="needs pyspark")
pytest.importorskip("pyarrow", reason="needs pyarrow")

PARTITIONS = 3
WAIT_S = 120.0
Produce = Callable[..., None]


@pytest.fixture
def sink_class() -> Any:
    from kbroker.pipeline.exactly_once import ExactlyOnceSink

    return ExactlyOnceSink


def copy_stream(spark: Any, bootstrap: str, sink: Any, checkpoint: Path, **options: str) -> None:
    source = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": "in",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **options,
    }
    stream = spark.readStream.format("kafka").options(**source).load().select("key", "value", "headers", "timestamp")
    query = (
        stream.writeStream.foreachBatch(sink.write_batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    if query.exception() is not None:
        raise query.exception()


@pytest.mark.slow
def test_a_stream_is_copied_once_with_a_failing_driver(
    spark: Any, broker: Broker, produce: Produce, sink_class: Any, tmp_path: Path
) -> None:
    broker.create_topic("in", 4)
    broker.create_topic("out", PARTITIONS)
    produce("in", [(f"k{number}", f"{number:04d}") for number in range(400)])

    def fail_once(step: str) -> None:
        if step in failing:
            failing.remove(step)
            raise RuntimeError("the driver fails")

    options = {"topic": "out"}
    failing: list[str] = ["written", "ended"]
    for _ in range(2):
        sink = sink_class(broker.bootstrap, "copy", tmp_path / "sink", options, on_step=fail_once)
        with pytest.raises(Exception, match="the driver fails"):
            copy_stream(spark, broker.bootstrap, sink, tmp_path / "checkpoint", maxOffsetsPerTrigger="150")
        sink.close()
    sink = sink_class(broker.bootstrap, "copy", tmp_path / "sink", options)
    copy_stream(spark, broker.bootstrap, sink, tmp_path / "checkpoint", maxOffsetsPerTrigger="150")
    sink.close()
    assert failing == []
    assert values_of(broker.bootstrap, "out", partitions=PARTITIONS) == [f"{number:04d}" for number in range(400)]


@pytest.mark.slow
async def test_a_stream_is_copied_once_within_a_cluster_that_loses_each_of_its_brokers(
    spark: Any, three: RunningCluster, sink_class: Any, tmp_path: Path
) -> None:
    bootstrap = three.bootstrap
    count = 0
    is_over = False

    def create_topics() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for creation in admin.create_topics([NewTopic("in", 4, 3), NewTopic("out", 3, 3)]).values():
            creation.result(WAIT_S)

    def write_and_copy() -> None:
        nonlocal count
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        sink = sink_class(bootstrap, "copy", tmp_path / "sink", {"topic": "out"})
        while not is_over or count < 400:
            for _ in range(100):
                producer.produce("in", f"{count:05d}")
                count += 1
            assert producer.flush(WAIT_S) == 0
            copy_stream(spark, bootstrap, sink, tmp_path / "checkpoint")
        sink.close()

    async def lose_each_broker() -> None:
        nonlocal is_over
        for broker_id in (1, 2, 3):
            await three.until_agreed(lambda _, __, topics: has_all_replicas(topics))
            await three.brokers[broker_id].kill()
            await three.until_agreed(lambda _, brokers, __: len(brokers) == 2)
            await three.start(broker_id)
        is_over = True

    await trio.to_thread.run_sync(create_topics)  # a broker that dies meanwhile would fail the request
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_each_broker)
        await trio.to_thread.run_sync(write_and_copy)
    found = await trio.to_thread.run_sync(lambda: values_of(bootstrap, "out", partitions=PARTITIONS))
    assert found == [f"{number:05d}" for number in range(count)]


def has_all_replicas(topics: Mapping[str, Mapping[int, tuple[int, list[int]]]]) -> bool:
    return "out" in topics and all(isr == [1, 2, 3] for topic in topics.values() for _, isr in topic.values())


def test_a_batch_after_a_shuffle_is_written_once(spark: Any, broker: Broker, sink_class: Any, tmp_path: Path) -> None:
    broker.create_topic("out", PARTITIONS)
    frame = spark.range(300).selectExpr("id % 10 AS bucket").groupBy("bucket").count()
    frame = frame.selectExpr("CAST(bucket AS STRING) AS key", "CAST(count AS STRING) AS value", "'out' AS topic")
    sink = sink_class(broker.bootstrap, "counts", tmp_path, {})
    for batch_id in (0, 0, 1):
        sink.write_batch(frame, batch_id)
    sink.close()
    assert values_of(broker.bootstrap, "out", partitions=PARTITIONS) == ["30"] * 20


def test_a_frame_is_written_in_one_job_by_the_data_source(spark: Any, broker: Broker) -> None:
    from kbroker.pipeline.exactly_once import TopicDataSource

    broker.create_topic("out", PARTITIONS)
    spark.dataSource.register(TopicDataSource)
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(CONCAT('v', id) AS BINARY) AS value",
        "CAST(id % 3 AS INT) AS partition",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"}
    frame.write.format("kbroker").mode("append").options(**options).save()
    messages = read_committed(broker.bootstrap, "out", partitions=PARTITIONS)
    found = sorted((int(each.key()), each.value(), each.partition(), each.timestamp()[1]) for each in messages)
    assert found == [(n, b"v%d" % n, n % 3, 1_700_000_000_000 + n) for n in range(1000)]


def test_columns_of_other_types_are_refused_in_one_line(
    spark: Any, broker: Broker, sink_class: Any, tmp_path: Path
) -> None:
    sink = sink_class(broker.bootstrap, "types", tmp_path, {"topic": "out"})
    with pytest.raises(UserError, match="Column key has type bigint; cast it"):
        sink.write_batch(spark.range(1).selectExpr("id AS key", "'v' AS value"), 0)
    with pytest.raises(UserError, match="no column value, only id"):
        sink.write_batch(spark.range(1), 0)


def test_a_failed_job_of_the_data_source_leaves_nothing(spark: Any, broker: Broker) -> None:
    from kbroker.pipeline.exactly_once import TopicDataSource

    broker.create_topic("out", PARTITIONS)
    spark.dataSource.register(TopicDataSource)
    value = "IF(id = 999, raise_error('a bad row'), CAST(id AS STRING)) AS value"
    frame = spark.range(0, 1000, 1, 2).selectExpr(value)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"}
    with pytest.raises(Exception, match="a bad row"):
        frame.write.format("kbroker").mode("append").options(**options).save()
    # Nothing is committed and nothing stays open: the last stable offset is the end of the log.
    assert read_committed(broker.bootstrap, "out", partitions=PARTITIONS) == []
