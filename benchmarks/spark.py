"""Rows of the Spark section: Spark, Kafka's Java consumer and a confluent-kafka consumer read stored topics.

Spark also reads segment files, and writes exactly once; both are compared with Spark's own source and sink.
A row compares two works, mostly the same read from each broker. A work gets the `Scene` of the section (brokers, Spark,
stored topics) and returns its figures, with the CPU time of the broker for each record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.clients import consume_with_java
from benchmarks.figures import Figures
from benchmarks.load import produce
from benchmarks.results import Comparison, Results
from benchmarks.rounds import log_progress, run_in_turn
from benchmarks.topics import Topic, WrongAnswer, create_topic
from benchmarks.wire import make_payload
from compat_tests.apache_kafka import JavaTools
from tools.jars import FetchFailed, MavenMissing, fetch_jars

__all__ = ["RECORDS", "ROWS", "Row", "Scene", "read_on", "run_spark", "timed"]

RECORDS = 2_000_000
RECORD_SIZE = 200
BATCH_COUNT = 80  # records of 200 bytes that fill a batch of the default size, 16 KB
SPARK_PARTITIONS = 4
MASTER = "local[2]"
QUICK_DIVISOR = 50
STREAM_BATCHES = 10
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": str(128 * 1024)}
RECORDS_PER_CALL = 10_000
TIMEOUT_SECONDS = 120.0


class SparkMissing(Exception):
    """Spark cannot be started here."""


class Scene:
    """Brokers, Spark and stored topics of a run. Topics are filled, and Spark is started, at their first use."""

    def __init__(self, tools: JavaTools, subject: Broker, rival: Broker, directory: Path, *, records: int) -> None:
        self.tools = tools
        self.subject = subject
        self.rival = rival
        self.directory = directory
        self.records = records
        self._spark: Any = None
        self._stored: dict[tuple[Broker, int], Topic] = {}
        self._frames: dict[str, Any] = {}

    @property
    def spark(self) -> Any:
        if self._spark is None:
            self._spark = _start_spark(self.directory)
        return self._spark

    def stored(self, broker: Broker, partitions: int) -> Topic:
        """Returns a topic with `records` records, spread evenly over its partitions."""
        topic = self._stored.get((broker, partitions))
        if topic is None:
            name = f"bench-stored-{partitions}-{os.urandom(4).hex()}".encode()
            topic = create_topic(broker.address, name, partitions)
            produce(broker, topic, make_payload(BATCH_COUNT, RECORD_SIZE), requests=self._batches, in_flight=5)
            self._stored[broker, partitions] = topic
        return topic

    @property
    def _batches(self) -> int:
        return -(-self.records // BATCH_COUNT)

    def frame(self, lengths: str) -> Any:
        """Returns a frame of keys and values in memory, whose values have 200 bytes, or on average 200."""
        frame = self._frames.get(lengths)
        if frame is None:
            size = str(RECORD_SIZE) if lengths == "equal" else f"{RECORD_SIZE // 2} + pmod(hash(id), {RECORD_SIZE + 1})"
            columns = ["CAST(id AS STRING) AS key", f"rpad(CAST(id AS STRING), CAST({size} AS INT), 'x') AS value"]
            frame = self.spark.range(0, self.records, 1, SPARK_PARTITIONS).selectExpr(*columns).persist()
            frame.count()
            self._frames[lengths] = frame
        return frame

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


Work = Callable[[Scene], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """Two works to compare: their rates, and the CPU time of their brokers."""

    name: str
    subject: Work
    rival: Work
    floor: float | None = 1.1
    cpu_limit: float | None = 1.0


def read_on(name: str, read: Callable[[Scene, Broker], Figures], *, floor: float = 1.1) -> Row:
    """Returns the row that compares a read from kbroker with the same read from Apache Kafka."""
    return Row(name, lambda scene: read(scene, scene.subject), lambda scene: read(scene, scene.rival), floor)


def timed(broker: Broker, size: int, work: Callable[[], int]) -> Figures:
    """Runs the work, which returns the number of records that it has handled, each of `size` bytes."""
    cpu, start = cpu_seconds(broker.pid), time.perf_counter()
    records = work()
    seconds = time.perf_counter() - start
    cpu = cpu_seconds(broker.pid) - cpu
    rate = records / seconds
    return Figures(rate, rate, rate * size / 1e6, cpu / records * 1e6, p50_ms=0.0, p99_ms=0.0)


def _read_with_spark(scene: Scene, broker: Broker) -> Figures:
    topic = scene.stored(broker, SPARK_PARTITIONS)
    spark = scene.spark

    def read() -> int:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name.decode()}
        records = spark.read.format("kafka").options(**options).load()
        count, size = records.selectExpr("count(*)", "sum(length(value))").first()
        return _checked(topic, count, size)

    try:
        return timed(broker, RECORD_SIZE, read)
    except _spark_errors() as problem:
        raise WrongAnswer(f"Spark could not read {topic.name.decode()}: {problem}") from problem


def _spark_errors() -> tuple[type[Exception], ...]:
    return import_module("py4j.protocol").Py4JError, import_module("pyspark.errors").PySparkException


def _read_with_java(scene: Scene, broker: Broker, *, partitions: int) -> Figures:
    return consume_with_java(scene.tools, broker, scene.stored(broker, partitions), RECORD_SIZE)


def _read_with_confluent(scene: Scene, broker: Broker, *, partitions: int) -> Figures:
    topic = scene.stored(broker, partitions)
    name = topic.name.decode()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "enable.auto.commit": False})

    def read() -> int:
        consumer.assign([TopicPartition(name, partition, 0) for partition in range(partitions)])
        count = size = 0
        expected = sum(topic.ends)
        while count < expected:
            messages = consumer.consume(RECORDS_PER_CALL, timeout=TIMEOUT_SECONDS)
            if not messages:
                raise WrongAnswer(f"A consumer of {name} got {count} of {expected} records")
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
                size += len(message.value() or b"")
            count += len(messages)
        return _checked(topic, count, size)

    try:
        return timed(broker, RECORD_SIZE, read)
    except KafkaException as problem:
        raise WrongAnswer(f"A consumer of {name} failed: {problem}") from problem
    finally:
        consumer.close()


def _checked(topic: Topic, count: int, size: int) -> int:
    expected = sum(topic.ends)
    if (count, size) != (expected, expected * RECORD_SIZE):
        raise WrongAnswer(f"{topic.name.decode()}: {count} records of {size} bytes in all were read, not {expected}")
    return count


def _read_segments(scene: Scene) -> Figures:
    topic = scene.stored(scene.subject, SPARK_PARTITIONS)
    read_segments = import_module("kbroker.pipeline.segments").read_segments
    directory = _data_directory(scene.subject)

    def read() -> int:
        records = read_segments(scene.spark, directory, topics=topic.name.decode())
        count, size = records.selectExpr("count(*)", "sum(length(value))").first()
        return _checked(topic, count, size)

    return timed(scene.subject, RECORD_SIZE, read)


def _data_directory(broker: Broker) -> str:
    arguments = Path(f"/proc/{broker.pid}/cmdline").read_bytes().decode().split("\0")
    if "--data-dir" not in arguments:
        raise WrongAnswer(f"The data directory of {broker.bootstrap} is unknown: start it with --data-dir")
    return arguments[arguments.index("--data-dir") + 1]


def _write_once(scene: Scene, lengths: str) -> Figures:
    """Writes a frame with the exactly-once sink, in one batch."""
    frame, topic = scene.frame(lengths), _new_topic(scene)
    with _sink(scene, topic) as sink:
        return _written(scene, topic, lambda: sink.write_batch(frame, 0))


def _write_with_spark(scene: Scene, lengths: str, options: Mapping[str, str]) -> Figures:
    """Writes the same frame with Spark's own sink, which may double records."""
    frame, topic = scene.frame(lengths), _new_topic(scene)
    given = {"kafka.bootstrap.servers": scene.subject.bootstrap, "topic": topic, **options}
    return _written(scene, topic, lambda: frame.write.format("kafka").options(**given).save())


def _stream_once(scene: Scene) -> Figures:
    topic = _new_topic(scene)
    with _sink(scene, topic) as sink:
        return _written(scene, topic, lambda: _stream(scene, lambda writer: writer.foreachBatch(sink.write_batch)))


def _stream_with_spark(scene: Scene) -> Figures:
    topic = _new_topic(scene)
    given = {"kafka.bootstrap.servers": scene.subject.bootstrap, "topic": topic}
    return _written(scene, topic, lambda: _stream(scene, lambda writer: writer.format("kafka").options(**given)))


def _stream(scene: Scene, sink: Callable[[Any], Any]) -> None:
    """Copies the stored topic in a few batches."""
    options = {
        "kafka.bootstrap.servers": scene.subject.bootstrap,
        "subscribe": scene.stored(scene.subject, SPARK_PARTITIONS).name.decode(),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(max(1, scene.records // STREAM_BATCHES)),
    }
    records = scene.spark.readStream.format("kafka").options(**options).load().select("key", "value")
    checkpoint = str(scene.directory / f"checkpoint-{os.urandom(4).hex()}")
    writer = sink(records.writeStream).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    if query.exception() is not None:
        raise WrongAnswer(f"The stream failed: {query.exception()}")


def _written(scene: Scene, topic: str, write: Callable[[], None]) -> Figures:
    def count() -> int:
        write()
        return scene.records

    return timed(scene.subject, RECORD_SIZE, count)


def _new_topic(scene: Scene) -> str:
    name = f"bench-written-{os.urandom(4).hex()}"
    create_topic(scene.subject.address, name.encode(), SPARK_PARTITIONS)
    return name


@contextmanager
def _sink(scene: Scene, topic: str) -> Iterator[Any]:
    exactly_once = import_module("kbroker.pipeline.exactly_once")
    sink = exactly_once.ExactlyOnceSink(scene.subject.bootstrap, topic, scene.directory / topic, {"topic": topic})
    try:
        yield sink
    finally:
        sink.close()


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
    yield Row("exactly-once sink in a stream, against Spark's own", _stream_once, _stream_with_spark, 0.7, None)


ROWS = (
    Row(
        "kbroker-log, against a read through kbroker",
        _read_segments,
        lambda scene: _read_with_spark(scene, scene.subject),
        1.5,
        None,
    ),
    *_sink_rows(),
    read_on(f"Spark batch read, {SPARK_PARTITIONS} partitions", _read_with_spark),
    *(
        read_on(f"{name}, {partitions} partition{'s' * (partitions > 1)}", partial(read, partitions=partitions))
        for partitions in (1, 10, 100)
        for name, read in (
            ("ConsumerPerformance", _read_with_java),
            ("confluent-kafka consumer", _read_with_confluent),
        )
    ),
)


def run_spark(
    tools: JavaTools,
    subject: Broker,
    rival: Broker,
    directory: Path,
    results: Results,
    *,
    only: str,
    rounds: int,
    quick: bool,
    records: int = RECORDS,
) -> None:
    if quick:
        records //= QUICK_DIVISOR
    with _open_scene(tools, subject, rival, directory, records) as scene:
        for row in ROWS:
            if only in row.name:
                try:
                    results.comparisons.append(_compare(row, scene, rounds))
                except (SparkMissing, MavenMissing, FetchFailed) as problem:
                    log_progress(f"Skipped {row.name}: {problem}")


@contextmanager
def _open_scene(tools: JavaTools, subject: Broker, rival: Broker, directory: Path, records: int) -> Iterator[Scene]:
    scene = Scene(tools, subject, rival, directory, records=records)
    try:
        yield scene
    finally:
        scene.close()


def _compare(row: Row, scene: Scene, rounds: int) -> Comparison:
    works = [partial(row.subject, scene), partial(row.rival, scene)]
    (subject, rival), failure = run_in_turn(row.name, works, rounds=rounds)
    return Comparison(row.name, "msg/s", subject, rival, row.floor, row.cpu_limit, failure)


def _start_spark(directory: Path) -> Any:
    try:
        session = import_module("pyspark.sql").SparkSession
    except ImportError:
        raise SparkMissing("pyspark is not installed: run `make install-spark`") from None
    log_progress(f"Starting Spark, {MASTER} …")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.jars": ",".join(str(jar) for jar in fetch_jars("spark").values()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "spark"),
        "spark.log.level": "ERROR",
    }
    builder = session.builder.master(MASTER).appName("kbroker benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
