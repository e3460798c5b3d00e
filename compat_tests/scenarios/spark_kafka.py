"""Spark's Kafka source and sink against one broker: frames of numbered records, and streams that tests can step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from compat_tests.scenarios.groups import DEADLINE_S

__all__ = [
    "SESSION_SETTINGS",
    "SHORT_LIVED_JVM",
    "SparkKafka",
    "add_partitions",
    "delete_records",
    "delete_topic",
    "numbers",
    "start_spark",
]

STREAM_S = 120
# A JVM that runs for a minute spends most of it on compilation: with C1 alone it is fastest.
SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

Options = Mapping[str, object]

SESSION_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def start_spark(jars: Iterable[str | Path], directory: Path, more: Mapping[str, str] | None = None) -> Any:
    """Returns a local Spark session with the Kafka connector, whose files are below `directory`. `more`: confs."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the tasks of kbroker's sink
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **SESSION_SETTINGS,
        "spark.local.dir": str(directory / "local"),
        "spark.log.level": "OFF",
        **(more or {}),
    }
    builder = SparkSession.builder.master("local[2]").appName("kbroker compat")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class SparkKafka:
    """Reads and writes topics of one broker with Spark."""

    def __init__(self, session: Any, bootstrap: str, directory: Path) -> None:
        self.session = session
        self.checkpoint = directory / "checkpoint"
        self._bootstrap = {"kafka.bootstrap.servers": bootstrap}
        self._directory = directory
        self._queries = 0

    def read(self, options: Options) -> Any:
        """Returns the frame of a batch read."""
        return self.session.read.format("kafka").options(**self._bootstrap, **options).load()

    def write(self, frame: Any, options: Options) -> None:
        frame.write.format("kafka").options(**self._bootstrap, **options).save()

    def stream(self, options: Options) -> Any:
        """Returns the frame of a streaming read, from the earliest offsets unless the options say otherwise."""
        defaults = {"startingOffsets": "earliest"}
        return self.session.readStream.format("kafka").options(**{**self._bootstrap, **defaults, **options}).load()

    def start_copy(self, frame: Any, target: str, **trigger: Any) -> Any:
        """Starts a stream that copies keys and values to a topic, from its checkpoint on."""
        sink = {**self._bootstrap, "topic": target, "checkpointLocation": str(self.checkpoint)}
        return frame.select("key", "value").writeStream.format("kafka").options(**sink).trigger(**trigger).start()

    def start_memory(self, frame: Any, **trigger: Any) -> Any:
        """Starts a stream into a table in memory; `rows_of` reads the table."""
        self._queries += 1
        name = f"memory_{self._directory.name.replace('-', '_')}_{self._queries}"
        writer = frame.writeStream.format("memory").queryName(name)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def rows_of(self, query: Any) -> Any:
        return self.session.table(query.name)

    def start_files(self, frame: Any, *, table_format: str = "parquet", **trigger: Any) -> Any:
        """Starts a stream into files, from its checkpoint on; `files` reads them."""
        sink = {"path": str(self._directory / "files"), "checkpointLocation": str(self.checkpoint)}
        selected = frame.select("topic", "partition", "offset", "value")
        return selected.writeStream.format(table_format).options(**sink).trigger(**trigger).start()

    def files(self, table_format: str = "parquet") -> Any:
        return self.session.read.format(table_format).load(str(self._directory / "files"))

    def copy_to_files(self, options: Options) -> Any:
        """Runs a stream into Parquet files until it has read what is in the topics now; returns the ended query."""
        return self.finish(self.start_files(self.stream(options), availableNow=True))

    @staticmethod
    def finish(query: Any) -> Any:
        """Waits for a query with `availableNow`. Raises the failure of the query, if any."""
        assert query.awaitTermination(STREAM_S), f"the query still runs: {query.status}"
        return query


def numbers(frame: Any) -> list[int]:
    """Returns the values of all records as sorted numbers."""
    return sorted(int(row["value"]) for row in frame.select(frame["value"].cast("string").alias("value")).collect())


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    _administrate(bootstrap, "create_partitions", [NewPartitions(topic, total)])


def delete_topic(bootstrap: str, topic: str) -> None:
    _administrate(bootstrap, "delete_topics", [topic], operation_timeout=DEADLINE_S)


def delete_records(bootstrap: str, topic: str, before: Sequence[int]) -> None:
    """Deletes the records before an offset of each partition."""
    ends = [confluent_kafka.TopicPartition(topic, index, offset) for index, offset in enumerate(before)]
    _administrate(bootstrap, "delete_records", ends)


def _administrate(bootstrap: str, operation: str, *arguments: Any, **options: Any) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})  # The futures fail if it does not outlive them.
    for future in getattr(client, operation)(*arguments, **options).values():
        future.result(DEADLINE_S)
