"""Works and rows of the pipelines on Spark: segment files, the exactly-once sink, the archive, latency of a transform.

All but the latency run on kbroker alone, beside the same work written with Spark's own source and sinks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.figures import Figures, figures_of
from benchmarks.spark_scene import (
    RECORD_SIZE,
    SPARK_PARTITIONS,
    Row,
    Scene,
    check_records,
    on_both,
    timed,
)
from benchmarks.topics import WrongAnswer

__all__ = ["PIPELINE_ROWS", "archive_topic", "read_segments", "read_with_spark", "stream_once"]

STREAM_BATCHES = 10
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": str(128 * 1024)}
SEND_INTERVAL_S = 0.01
RECORDS_FOR_ONE_LATENCY = 1000
LEAST_LATENCIES = 20
WAIT_SECONDS = 120.0


def read_with_spark(scene: Scene, broker: Broker, partitions: int = SPARK_PARTITIONS) -> Figures:
    topic = scene.stored(broker, partitions)
    spark = scene.spark

    def read() -> int:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name.decode()}
        records = spark.read.format("kafka").options(**options).load()
        count, size = records.selectExpr("count(*)", "sum(length(value))").first()
        return check_records(topic, count, size)

    return timed(broker, RECORD_SIZE, read)


def read_segments(scene: Scene, partitions: int = SPARK_PARTITIONS) -> Figures:
    topic = scene.stored(scene.subject, partitions)
    read_segments = import_module("kbroker.pipeline.segments").read_segments
    directory = _data_directory(scene.subject)

    def read() -> int:
        records = read_segments(scene.spark, directory, topics=topic.name.decode())
        count, size = records.selectExpr("count(*)", "sum(length(value))").first()
        return check_records(topic, count, size)

    return timed(scene.subject, RECORD_SIZE, read)


def _data_directory(broker: Broker) -> str:
    arguments = Path(f"/proc/{broker.pid}/cmdline").read_bytes().decode().split("\0")
    if "--data-dir" not in arguments:
        raise WrongAnswer(f"The data directory of {broker.bootstrap} is unknown: start it with --data-dir")
    return arguments[arguments.index("--data-dir") + 1]


def _write_once(scene: Scene, lengths: str) -> Figures:
    """Writes a frame with the exactly-once sink, in one batch."""
    frame, topic = scene.frame(lengths), scene.new_topic(scene.subject)
    with _sink(scene, topic) as sink:
        return _written(scene, lambda: sink.write_batch(frame, 0))


def _write_with_spark(scene: Scene, lengths: str, options: Mapping[str, str]) -> Figures:
    """Writes the same frame with Spark's own sink, which may double records."""
    frame, topic = scene.frame(lengths), scene.new_topic(scene.subject)
    given = {"kafka.bootstrap.servers": scene.subject.bootstrap, "topic": topic, **options}
    return _written(scene, lambda: frame.write.format("kafka").options(**given).save())


def stream_once(scene: Scene, partitions: int = SPARK_PARTITIONS) -> Figures:
    """Copies the stored topic with the exactly-once sink, in a few batches."""
    topic = scene.new_topic(scene.subject, partitions)
    with _sink(scene, topic) as sink:
        return _written(scene, lambda: _stream(scene, partitions, lambda writer: writer.foreachBatch(sink.write_batch)))


def _stream_with_spark(scene: Scene) -> Figures:
    topic = scene.new_topic(scene.subject)
    given = {"kafka.bootstrap.servers": scene.subject.bootstrap, "topic": topic}
    return _written(
        scene, lambda: _stream(scene, SPARK_PARTITIONS, lambda writer: writer.format("kafka").options(**given))
    )


def _stream(scene: Scene, partitions: int, sink: Callable[[Any], Any]) -> None:
    records = _open_stream(scene, partitions).select("key", "value")
    _finish(_until_now(scene, sink(records.writeStream)).start())


def _open_stream(scene: Scene, partitions: int, **options: str) -> Any:
    """Returns a stream of the stored topic, in a few batches."""
    chosen = {
        "kafka.bootstrap.servers": scene.subject.bootstrap,
        "subscribe": scene.stored(scene.subject, partitions).name.decode(),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": _batch_size(scene),
        **options,
    }
    return scene.spark.readStream.format("kafka").options(**chosen).load()


def _batch_size(scene: Scene) -> str:
    return str(max(1, scene.records // STREAM_BATCHES))


def _until_now(scene: Scene, writer: Any) -> Any:
    return writer.option("checkpointLocation", str(scene.new_directory())).trigger(availableNow=True)


def _finish(query: Any) -> None:
    query.awaitTermination()
    if query.exception() is not None:
        raise WrongAnswer(f"The stream failed: {query.exception()}")


def _written(scene: Scene, write: Callable[[], None]) -> Figures:
    def count() -> int:
        write()
        return scene.records

    return timed(scene.subject, RECORD_SIZE, count)


@contextmanager
def _sink(scene: Scene, topic: str) -> Iterator[Any]:
    exactly_once = import_module("kbroker.pipeline.exactly_once")
    sink = exactly_once.ExactlyOnceSink(scene.subject.bootstrap, topic, scene.directory / topic, {"topic": topic})
    try:
        yield sink
    finally:
        sink.close()


def archive_topic(scene: Scene, table_format: str, partitions: int = SPARK_PARTITIONS) -> Figures:
    """Archives the stored topic into a new table, as `kbroker pipeline run --once` does."""
    archive = import_module("kbroker.pipeline").archive
    topic = scene.stored(scene.subject, partitions).name.decode()
    checkpoint = scene.new_directory()

    def write(path: Path) -> None:
        query = archive(
            scene.spark,
            bootstrap=scene.subject.bootstrap,
            topics=[topic],
            path=str(path),
            format=table_format,
            checkpoint=str(checkpoint),
            trigger="available-now",
            name=checkpoint.name,
            options={"maxOffsetsPerTrigger": _batch_size(scene)},
        )
        _finish(query)

    return _archived(scene, table_format, partitions, write)


def _archive_by_hand(scene: Scene, table_format: str) -> Figures:
    """Writes the same table as `archive_topic` does, with Spark's own source and sink."""

    def write(path: Path) -> None:
        same = {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
        records = _open_stream(scene, SPARK_PARTITIONS, **same).selectExpr("*", "to_date(timestamp) AS date")
        writer = records.writeStream.format(table_format).partitionBy("topic", "date").option("path", str(path))
        _finish(_until_now(scene, writer).start())

    return _archived(scene, table_format, SPARK_PARTITIONS, write)


def _archived(scene: Scene, table_format: str, partitions: int, write: Callable[[Path], None]) -> Figures:
    topic, path = scene.stored(scene.subject, partitions), scene.new_directory()
    expected = sum(topic.ends)

    def count() -> int:
        write(path)
        return expected

    figures = timed(scene.subject, RECORD_SIZE, count)
    table = scene.spark.read.format(table_format).load(str(path))
    check_records(topic, *table.selectExpr("count(*)", "sum(length(value))").first())
    shutil.rmtree(path)
    return figures


def _transform_latency(scene: Scene, broker: Broker, *, delivery: str) -> Figures:
    """Measures the time from `produce` until a consumer has the record, through a running transform."""
    source, target = scene.new_topic(broker), scene.new_topic(broker)
    checkpoint = scene.new_directory()
    query = import_module("kbroker.pipeline").transform(
        scene.spark,
        bootstrap=broker.bootstrap,
        topics=[source],
        to=target,
        sql="SELECT key, value FROM records",
        checkpoint=str(checkpoint),
        name=checkpoint.name,
        delivery=delivery,
    )
    try:
        with _Echo(broker, source, target) as echo:
            echo.measure(LEAST_LATENCIES)  # the first batches are slow: Spark compiles its plans
            cpu, start = cpu_seconds(broker.pid), time.perf_counter()
            latencies = echo.measure(max(LEAST_LATENCIES, scene.records // RECORDS_FOR_ONE_LATENCY))
            seconds = time.perf_counter() - start
    finally:
        query.stop()
    return figures_of(
        requests=len(latencies),
        messages=len(latencies),
        size_bytes=RECORD_SIZE * len(latencies),
        seconds=seconds,
        cpu_seconds=cpu_seconds(broker.pid) - cpu,
        latencies=latencies,
    )


class _Echo:
    """Sends records to one topic at a constant rate, and waits for them in another topic."""

    def __init__(self, broker: Broker, source: str, target: str) -> None:
        self._source = source
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": target,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(target, number, 0) for number in range(SPARK_PARTITIONS)])
        self._sent = 0

    def __enter__(self) -> _Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(WAIT_SECONDS)
        self._consumer.close()

    def measure(self, count: int) -> list[float]:
        """Returns the seconds that each of `count` records took."""
        sent_at: dict[bytes, float] = {}
        latencies: list[float] = []
        sent, start = 0, time.perf_counter()
        deadline = start + count * SEND_INTERVAL_S + WAIT_SECONDS
        while len(latencies) < count:
            now = time.perf_counter()
            if now > deadline:
                raise WrongAnswer(f"{len(latencies)} of {count} records came through in {now - start:.0f} s")
            due = start + sent * SEND_INTERVAL_S
            if sent < count and now >= due:
                sent_at[self._send()] = now
                sent += 1
                continue
            message = self._consumer.poll(due - now if sent < count else 1.0)
            if message is not None:
                if message.error():
                    raise WrongAnswer(f"The consumer failed: {message.error()}")
                latencies.append(time.perf_counter() - sent_at.pop(message.value() or b""))
        return latencies

    def _send(self) -> bytes:
        """Sends a record with a value of its own, and returns the value."""
        value = str(self._sent).encode().ljust(RECORD_SIZE)
        self._sent += 1
        self._producer.produce(self._source, value)
        self._producer.poll(0)
        return value


def _latency_rows() -> Iterator[Row]:
    for delivery in ("exactly-once", "at-least-once"):
        row = on_both(f"micro-batch transform, {delivery}", partial(_transform_latency, delivery=delivery))
        yield replace(row, floor=1 / 1.05, cpu_limit=None, units=("ms p50", "ms p99"))


def _sink_rows() -> Iterator[Row]:
    """Yields rows that compare the exactly-once sink with Spark's own, both on kbroker."""
    for lengths in ("any", "equal"):
        for name, options, floor in (("defaults", {}, 0.85), ("linger 20 ms, 128 KB", TUNED, 0.6)):
            yield Row(
                f"exactly-once sink, {lengths} lengths, against Spark's own ({name})",
                partial(_write_once, lengths=lengths),
                partial(_write_with_spark, lengths=lengths, options=options),
                floor,
                None,
            )
    yield Row("exactly-once sink in a stream, against Spark's own", stream_once, _stream_with_spark, 0.7, None)


PIPELINE_ROWS = (
    Row(
        "kbroker-log, against a read through kbroker",
        read_segments,
        lambda scene: read_with_spark(scene, scene.subject),
        1.5,
        None,
    ),
    *_sink_rows(),
    *(
        Row(
            f"archive to {name}, against the same job by hand",
            partial(archive_topic, table_format=table_format),
            partial(_archive_by_hand, table_format=table_format),
            0.95,
            None,
        )
        for name, table_format in (("Parquet", "parquet"), ("Delta", "delta"))
    ),
    *_latency_rows(),
)
