"""Parts that the rows on Spark share: brokers, one Spark session, stored topics, and the timing of a job.

A row compares two works, mostly the same work on each broker. A work gets the `Scene` of the section and returns its
figures, with the CPU time of the broker for each record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.figures import Figures
from benchmarks.load import produce
from benchmarks.rounds import log_progress
from benchmarks.topics import Topic, WrongAnswer, create_topic
from benchmarks.wire import make_payload
from compat_tests.apache_kafka import JavaTools
from tools.jars import fetch_jars

__all__ = [
    "MASTER",
    "RECORD_SIZE",
    "SPARK_PARTITIONS",
    "Row",
    "Scene",
    "SparkMissing",
    "Work",
    "check_records",
    "on_both",
    "run_work",
    "start_spark",
    "timed",
]

RECORD_SIZE = 200
BATCH_COUNT = 80  # records of 200 bytes that fill a batch of the default size, 16 KB
SPARK_PARTITIONS = 4
MASTER = "local[2]"
RATE = ("msg/s",)


class SparkMissing(Exception):
    """Spark cannot be started here."""


class Scene:
    """Brokers, Spark and stored topics of a run. Topics are filled, and Spark is started, at their first use."""

    def __init__(
        self,
        tools: JavaTools | None,
        subject: Broker,
        rival: Broker,
        directory: Path,
        *,
        records: int,
        master: str = MASTER,
    ) -> None:
        self.tools = tools
        self.subject = subject
        self.rival = rival
        self.directory = directory
        self.records = records
        self.master = master
        self._spark: Any = None
        self._stored: dict[tuple[Broker, int], Topic] = {}
        self._frames: dict[str, Any] = {}

    @property
    def spark(self) -> Any:
        if self._spark is None:
            self._spark = start_spark(self.directory, self.master)
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

    def new_topic(self, broker: Broker, partitions: int = SPARK_PARTITIONS) -> str:
        """Creates an empty topic and returns its name."""
        name = f"bench-written-{os.urandom(4).hex()}"
        create_topic(broker.address, name.encode(), partitions)
        return name

    def new_directory(self) -> Path:
        """Returns the path of a directory that does not exist yet."""
        return self.directory / f"work-{os.urandom(4).hex()}"

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


Work = Callable[[Scene], Figures]


def run_work(work: Work, scene: Scene) -> Figures:
    """Runs a work. Raises WrongAnswer if Spark or a pipeline refuses it."""
    try:
        return work(scene)
    except Exception as problem:
        if not type(problem).__module__.startswith(("pyspark.", "py4j.", "kbroker.")):
            raise
        raise WrongAnswer(f"Spark failed: {problem}") from problem


@dataclass(frozen=True, slots=True)
class Row:
    """Two works to compare: their rates or latencies, and the CPU time of their brokers."""

    name: str
    subject: Work
    rival: Work
    floor: float | None = 1.1
    cpu_limit: float | None = 1.0
    units: tuple[str, ...] = RATE
    """Figures to compare, each in a line of its own."""


def on_both(name: str, work: Callable[[Scene, Broker], Figures], *, floor: float = 1.1) -> Row:
    """Returns the row that compares a work on kbroker with the same work on Apache Kafka."""
    return Row(name, lambda scene: work(scene, scene.subject), lambda scene: work(scene, scene.rival), floor)


def timed(broker: Broker, size: int, work: Callable[[], int]) -> Figures:
    """Runs the work, which returns the number of records that it has handled, each of `size` bytes."""
    cpu, start = cpu_seconds(broker.pid), time.perf_counter()
    records = work()
    seconds = time.perf_counter() - start
    cpu = cpu_seconds(broker.pid) - cpu
    rate = records / seconds
    return Figures(rate, rate, rate * size / 1e6, cpu / records * 1e6, p50_ms=0.0, p99_ms=0.0)


def check_records(topic: Topic, count: int, size: int) -> int:
    """Returns the number of records. Raises WrongAnswer if a record or a byte of the topic is missing."""
    expected = sum(topic.ends)
    if (count, size) != (expected, expected * RECORD_SIZE):
        raise WrongAnswer(f"{topic.name.decode()}: {count} records of {size} bytes in all were read, not {expected}")
    return count


def start_spark(directory: Path, master: str) -> Any:
    """Starts Spark with its Kafka connector and Delta Lake."""
    try:
        session = import_module("pyspark.sql").SparkSession
    except ImportError:
        raise SparkMissing("pyspark is not installed: run `make install-spark`") from None
    log_progress(f"Starting Spark, {master} …")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.jars": ",".join(str(jar) for name in ("spark", "tables") for jar in fetch_jars(name).values()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "spark"),
        "spark.log.level": "ERROR",
        **import_module("kbroker.pipeline.session").FORMAT_CONF["delta"],
    }
    builder = session.builder.master(master).appName("kbroker benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
