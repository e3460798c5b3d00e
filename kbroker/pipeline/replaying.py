"""Replays a table into topics with keys, headers, timestamps and partitions as they were, at a chosen speed.

    CHECKPOINT/plan.json       slices of the table, made once: records that arrive later are not replayed
    CHECKPOINT/progress.json   number of slices that are written

A slice is a batch of the sink. After a crash the sink finishes or repeats the last slice (see exactly_once.py).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions

from kbroker.clock import Clock, SystemClock
from kbroker.errors import UserError
from kbroker.pipeline.archiving import iceberg_table
from kbroker.pipeline.brokers import check_topic
from kbroker.pipeline.definition import AT_LEAST_ONCE, EXACTLY_ONCE, Pipeline, TableSink, TopicSink
from kbroker.pipeline.durable_files import write_json
from kbroker.pipeline.jobs import Job
from kbroker.pipeline.kinds import ReplayJob
from kbroker.pipeline.ownership import PipelineCheckpoint, claim_checkpoint
from kbroker.pipeline.problems import first_line
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.replay_plan import IntervalCount, ReplaySlice, plan_from_json, plan_replay, plan_to_json
from kbroker.pipeline.streams import MAIN, exactly_once_sink, record_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ReplayRun", "frames", "prepare_replay", "replay", "start"]

COLUMNS: Final = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
UNPACED_INTERVAL_S: Final = 3600
UNPACED_RECORDS: Final = 1_000_000


def replay(
    spark: SparkSession,
    *,
    bootstrap: str,
    checkpoint: str,
    path: str | None = None,
    table: str | None = None,
    format: str = "parquet",  # noqa: A002 - Spark's name for it
    topics: Sequence[str] = (),
    to: str | None = None,
    speed: float | None = None,
    delivery: str = EXACTLY_ONCE,
    name: str = "replay",
) -> int:
    """Replays a table to the end, and returns the number of records. `speed` 1 is the original one; None: no pauses."""
    job = ReplayJob(TableSink(format, path, table), TopicSink(bootstrap, to, delivery), speed, topics=tuple(topics))
    run = prepare_replay(spark, job, name=name, location=checkpoint)
    run.run()
    failure = run.failure()
    if failure is not None:
        raise failure
    return sum(part.records for part in run.slices)


def start(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    run = prepare_replay(spark, pipeline.job, name=pipeline.name, location=pipeline.checkpoint)
    run.begin()
    return [run]


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Returns the frame of the whole table."""
    return {MAIN: record_columns(_read_table(spark, pipeline.job), pipeline.job.sink.topic)}


def _read_table(spark: SparkSession, job: ReplayJob) -> DataFrame:
    source = job.source
    try:
        if source.format == "iceberg" or source.table is not None:
            table = spark.table(iceberg_table(spark, source) if source.format == "iceberg" else source.table)
        else:
            reader = spark.read.format(source.format).options(**source.options)
            if source.format == "parquet":
                reader = reader.option("mergeSchema", "true")
            table = reader.load(source.path)
    except AnalysisException as problem:
        raise UserError(f"Table {source.table or source.path} cannot be read: {first_line(problem)}") from problem
    found = dict(table.dtypes)
    for name, kind in COLUMNS.items():
        if found.get(name) != kind:
            raise UserError(
                f"Table {source.table or source.path} has no column {name} of type {kind}. "
                "A replay needs the columns of an archive: topic, partition, offset, timestamp, key, value"
            )
    return table.filter(functions.col("topic").isin(list(job.topics))) if job.topics else table


def prepare_replay(spark: SparkSession, job: ReplayJob, *, name: str, location: str, **seams: Any) -> ReplayRun:
    """Returns a run that has not begun. Raises UserError if the table cannot be replayed."""
    table = _read_table(spark, job)
    record_columns(table, job.sink.topic)  # raises if keys or values are not bytes
    checkpoint = claim_checkpoint(location, name=name, kind="replay", destination=str(job.sink.topic))
    if not checkpoint.is_local:
        raise UserError(f"The checkpoint of a replay must be a local directory, not {location}")
    slices = _load_plan(checkpoint)
    if slices is None:
        slices = _make_plan(table, job)
        _check_partitions(slices, job.sink)
        write_json(Path(location) / "plan.json", plan_to_json(slices))
    return ReplayRun(table, job, checkpoint, slices, **seams)


def _load_plan(checkpoint: PipelineCheckpoint) -> list[ReplaySlice] | None:
    try:
        return plan_from_json(json.loads((Path(checkpoint.location) / "plan.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _make_plan(table: DataFrame, job: ReplayJob) -> list[ReplaySlice]:
    interval_s = UNPACED_INTERVAL_S if job.speed is None else job.interval_s
    interval = functions.floor(functions.unix_millis("timestamp") / functions.lit(interval_s * 1000)).alias("interval")
    counted = table.groupBy(interval, "topic", "partition").agg(
        functions.max("offset").alias("last"), functions.count(functions.lit(1)).alias("records")
    )
    counts = [
        IntervalCount(row["interval"] * interval_s * 1000, row["topic"], row["partition"], row["last"], row["records"])
        for row in counted.collect()
    ]
    return plan_replay(counts, min_records=UNPACED_RECORDS if job.speed is None else 1)


def _check_partitions(slices: Sequence[ReplaySlice], sink: TopicSink) -> None:
    needed: dict[str, int] = {}
    for part in slices:
        for offsets in part.ranges:
            topic = sink.topic or offsets.topic
            needed[topic] = max(needed.get(topic, 0), offsets.partition + 1)
    for topic, count in needed.items():
        found = check_topic(sink.bootstrap, topic, sink.options)
        if found is not None and len(found.partitions) < count:
            raise UserError(
                f"Topic '{topic}' has {len(found.partitions)} partitions, but the table has records of {count}. "
                f"Add partitions: kbroker topics alter {topic} --partitions {count}"
            )


class ReplayRun:
    """A replay in a thread of its own."""

    def __init__(
        self,
        table: DataFrame,
        job: ReplayJob,
        checkpoint: PipelineCheckpoint,
        slices: Sequence[ReplaySlice],
        *,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """Tests pass their own clock and pause."""
        self.slices = slices
        self._table = table
        self._job = job
        self._checkpoint = checkpoint
        self._clock = clock or SystemClock()
        self._progress_file = Path(checkpoint.location) / "progress.json"
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._reports: list[Progress] = []

    @property
    def name(self) -> str:
        name: str = self._checkpoint.owner["name"]
        return name

    @property
    def is_active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def reports(self) -> list[Progress]:
        found, self._reports = self._reports, []
        return found

    def failure(self) -> BaseException | None:
        return self._failure

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Writes the slices that are left, each at its time."""
        try:
            self._write_slices()
        except Exception as failure:  # shown by the watcher of the job, in another thread
            self._failure = failure

    def _write_slices(self) -> None:
        done = self._slices_done()
        write = self._writer()
        began = self._clock.monotonic()
        for number in range(done, len(self.slices)):
            part = self.slices[number]
            if self._job.speed is not None:
                due = began + (part.time_ms - self.slices[done].time_ms) / 1000 / self._job.speed
                self._pause(max(0.0, due - self._clock.monotonic()))
            if self._stopping.is_set():
                return
            start = self._clock.monotonic()
            write(self._frame_of(part), number)
            write_json(self._progress_file, {"slices": number + 1})
            self._report(number, part, self._clock.monotonic() - start)

    def _slices_done(self) -> int:
        try:
            done: int = json.loads(self._progress_file.read_text(encoding="utf-8"))["slices"]
        except FileNotFoundError:
            return 0
        return done

    def _writer(self) -> Any:
        sink = self._job.sink
        if sink.delivery != AT_LEAST_ONCE:
            return exactly_once_sink(self._table.sparkSession, sink, self._checkpoint, query=MAIN).write_batch
        options = {**sink.options, "kafka.bootstrap.servers": sink.bootstrap}

        def write(frame: DataFrame, _number: int) -> None:
            frame.write.format("kafka").options(**options).save()

        return write

    def _frame_of(self, part: ReplaySlice) -> DataFrame:
        col = functions.col
        ranges = [
            (col("topic") == r.topic)
            & (col("partition") == r.partition)
            & (col("offset") > r.after)
            & (col("offset") <= r.last)
            for r in part.ranges
        ]
        rows = self._table.filter(reduce(lambda left, right: left | right, ranges))
        # All records of a partition in one task, in the order of their offsets.
        ordered = rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
        return record_columns(ordered, self._job.sink.topic)

    def _report(self, number: int, part: ReplaySlice, seconds: float) -> None:
        left = sum(later.records for later in self.slices[number + 1 :])
        rate = part.records / seconds if seconds > 0 else 0.0
        lag = {self._job.sink.topic or "table": left}
        self._reports.append(Progress(number, part.records, part.records, rate, int(seconds * 1000), lag))
