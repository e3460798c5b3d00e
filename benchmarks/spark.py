"""The Spark section: Spark, Kafka's Java consumer and a confluent-kafka consumer read stored topics from both brokers.

`spark_pipelines.py` has the rows of the pipelines, `spark_scene.py` what all rows share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.broker_process import Broker
from benchmarks.clients import consume_with_java
from benchmarks.figures import Figures
from benchmarks.results import Comparison, Results
from benchmarks.rounds import log_progress, run_in_turn
from benchmarks.spark_pipelines import PIPELINE_ROWS, read_with_spark
from benchmarks.spark_scene import (
    RECORD_SIZE,
    SPARK_PARTITIONS,
    Row,
    Scene,
    SparkMissing,
    check_records,
    on_both,
    run_work,
    timed,
)
from benchmarks.topics import WrongAnswer
from compat_tests.apache_kafka import JavaTools
from tools.jars import FetchFailed, MavenMissing

__all__ = ["RECORDS", "ROWS", "run_spark"]

RECORDS = 2_000_000
QUICK_DIVISOR = 50
RECORDS_PER_CALL = 10_000
TIMEOUT_SECONDS = 120.0


def _read_with_java(scene: Scene, broker: Broker, *, partitions: int) -> Figures:
    assert scene.tools is not None
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
        return check_records(topic, count, size)

    try:
        return timed(broker, RECORD_SIZE, read)
    except KafkaException as problem:
        raise WrongAnswer(f"A consumer of {name} failed: {problem}") from problem
    finally:
        consumer.close()


ROWS = (
    *PIPELINE_ROWS,
    on_both(f"Spark batch read, {SPARK_PARTITIONS} partitions", read_with_spark),
    *(
        on_both(f"{name}, {partitions} partition{'s' * (partitions > 1)}", partial(read, partitions=partitions))
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
                    results.comparisons += _compare(row, scene, rounds)
                except (SparkMissing, MavenMissing, FetchFailed) as problem:
                    log_progress(f"Skipped {row.name}: {problem}")


@contextmanager
def _open_scene(tools: JavaTools, subject: Broker, rival: Broker, directory: Path, records: int) -> Iterator[Scene]:
    scene = Scene(tools, subject, rival, directory, records=records)
    try:
        yield scene
    finally:
        scene.close()


def _compare(row: Row, scene: Scene, rounds: int) -> list[Comparison]:
    """Returns a comparison for each unit of the row."""
    works = [partial(run_work, row.subject, scene), partial(run_work, row.rival, scene)]
    (subject, rival), failure = run_in_turn(row.name, works, rounds=rounds)
    return [Comparison(row.name, unit, subject, rival, row.floor, row.cpu_limit, failure) for unit in row.units]
