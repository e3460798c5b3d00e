"""Audits a pipeline: counts records by topic and window at each hop, publishes the counts, and compares them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions

from kbroker.client.admin.topics import create_topic
from kbroker.client.cluster import Cluster
from kbroker.client.consuming import Consumer
from kbroker.client.failures import BrokerRefusal
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.producing import Producer
from kbroker.clock import Clock, SystemClock
from kbroker.errors import UserError
from kbroker.pipeline.accompanied_job import AccompaniedJob
from kbroker.pipeline.audit_counts import AuditCount, add_up, parse_count
from kbroker.pipeline.audit_file import AuditPlan, Hop
from kbroker.pipeline.audit_report import AuditReport, compare_counts, report_svg, report_table
from kbroker.pipeline.brokers import ask_brokers, check_source
from kbroker.pipeline.definition import Pipeline, TableSink, TopicsToRead
from kbroker.pipeline.frames import stream_topics
from kbroker.pipeline.jobs import Job, StreamJob
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER
from kbroker.pipeline.ownership import claim_checkpoint
from kbroker.pipeline.problems import first_line
from kbroker.pipeline.streams import MAIN, begin_stream, each_batch
from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditTopic", "audit", "frames", "start"]

_LOG: Final = logging.getLogger(__name__)
REPORT_SECONDS: Final = 10.0


def audit(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    hops: Sequence[Hop],
    checkpoint: str,
    window_ms: int = 60_000,
    settle_ms: int = 60_000,
    report: str | None = None,
    trigger: str = "0 seconds",
    name: str = "audit",
    options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> AccompaniedJob:
    """Starts an audit that publishes its counts to `topic`, and returns it.

    `report`: directory of the report. `options`: TLS and SASL for the audit topic.
    Raises UserError if a table cannot be read or the audit topic cannot be created.
    """
    plan = AuditPlan(bootstrap, topic, tuple(hops), window_ms, settle_ms, report, dict(options or {}))
    return _start(spark, plan, name=name, location=checkpoint, trigger=trigger, clock=clock or SystemClock())


def start(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    where = {"name": pipeline.name, "location": pipeline.checkpoint, "trigger": pipeline.trigger}
    return [_start(spark, pipeline.job, **where, clock=SystemClock())]


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Returns the frames of the queries, by their names."""
    return {MAIN: _records(spark, pipeline.job.hops)}


def _start(
    spark: SparkSession, plan: AuditPlan, *, name: str, location: str, trigger: str, clock: Clock
) -> AccompaniedJob:
    started_ms = clock.now_ms()
    topic = AuditTopic(plan, clock)
    topic.create()
    counted = _records(spark, plan.hops)
    checkpoint = claim_checkpoint(location, name=name, kind="audit", destination=plan.topic)
    window = functions.expr(f"unix_millis(timestamp) - pmod(unix_millis(timestamp), {plan.window_ms})")

    def publish(frame: DataFrame, batch_id: int) -> None:
        rows = frame.groupBy("hop", "topic", window.alias("start")).count().collect()
        # A batch that Spark repeats has the same records, so its counts replace the counts of the first attempt.
        instance = f"{name}-{checkpoint.owner['id']}-{batch_id}"
        topic.publish(
            [AuditCount(row["hop"], instance, row["topic"], row["start"], plan.window_ms, row["count"]) for row in rows]
        )

    query = begin_stream(counted, checkpoint, query=MAIN, trigger=trigger).foreachBatch(each_batch(publish)).start()

    def report() -> None:
        # Records that the audit has not counted yet would look like lost records.
        if not query.isActive and query.exception() is None:
            topic.note_counted(started_ms)
        elif query.isActive and query.lastProgress and not query.status["isDataAvailable"]:
            topic.note_counted(clock.now_ms())
        topic.write_report()

    return AccompaniedJob(StreamJob(query, name), report, interval_s=REPORT_SECONDS)


def _records(spark: SparkSession, hops: Sequence[Hop]) -> DataFrame:
    """Returns hop, topic and timestamp of the records of all hops."""
    for hop in hops:
        if isinstance(hop.records, TopicsToRead):
            check_source(hop.records)
    return reduce(lambda left, right: left.union(right), (_records_of(spark, hop) for hop in hops))


def _records_of(spark: SparkSession, hop: Hop) -> DataFrame:
    """Returns hop, topic and timestamp of the records that pass a hop."""
    if isinstance(hop.records, TableSink):
        records = _stream_table(spark, hop.name, hop.records)
    else:
        records = stream_topics(spark, hop.records)
    if hop.copies_only:
        is_copy = functions.exists("headers", lambda header: header["key"] == ORIGIN_HEADER)
        records = records.where(functions.coalesce(is_copy, functions.lit(False)))
    return records.select(functions.lit(hop.name).alias("hop"), "topic", "timestamp")


def _stream_table(spark: SparkSession, hop: str, table: TableSink) -> DataFrame:
    try:
        reader: Any = spark.readStream.format(table.format).options(**table.options)
        if table.table is not None:
            return reader.table(table.table)
        if table.format == "parquet":
            reader = reader.schema(spark.read.options(**table.options).parquet(table.path).schema)
        records = reader.load(table.path)
        records.select("topic", "timestamp")
    except AnalysisException as problem:
        needs = "The table must exist and have the columns topic and timestamp"
        raise UserError(f"Hop {hop} cannot be audited: {first_line(problem)}. {needs}") from problem
    return records


class AuditTopic:
    """Topic of the counts: publishes counts, reads the counts of all hops, and reports."""

    def __init__(self, plan: AuditPlan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._positions: dict[int, int] = {}
        self._counts: dict[bytes, AuditCount] = {}
        self._known_faults: set[tuple[str, int, str]] = set()
        self._counted_until_ms = 0

    def create(self) -> None:
        """Creates the topic if it does not exist. Compaction drops counts that were published twice."""

        async def run(cluster: Cluster) -> None:
            try:
                await create_topic(cluster, self._plan.topic, configs={"cleanup.policy": "compact,delete"})
            except BrokerRefusal as refusal:
                if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

        ask_brokers(self._plan.bootstrap, run, self._plan.options)

    def publish(self, counts: list[AuditCount]) -> None:
        async def run(cluster: Cluster) -> None:
            producer = Producer(cluster, self._plan.topic, may_create=False)
            await producer.start()
            for count in counts:
                if producer.add(count.value, key=count.key, timestamp_ms=self._clock.now_ms()):
                    await producer.flush()
            await producer.flush()

        if counts:
            ask_brokers(self._plan.bootstrap, run, self._plan.options)

    def note_counted(self, until_ms: int) -> None:
        """Notes that all records which were in the hops at this time are counted."""
        self._counted_until_ms = max(until_ms, self._counted_until_ms)

    def report(self) -> AuditReport:
        """Reads the new counts and compares the counts of all hops."""
        ask_brokers(self._plan.bootstrap, self._read, self._plan.options)
        return compare_counts(
            add_up(self._counts.values(), self._plan.window_ms),
            {hop.name: hop.previous for hop in self._plan.hops},
            window_ms=self._plan.window_ms,
            settled_before_ms=self._counted_until_ms - self._plan.settle_ms,
        )

    async def _read(self, cluster: Cluster) -> None:
        topic = await cluster.topic(self._plan.topic)
        partitions = [partition.number for partition in topic.partitions]
        starts = await list_offsets(cluster, topic.name, dict.fromkeys(partitions, EARLIEST))
        ends = await list_offsets(cluster, topic.name, dict.fromkeys(partitions, LATEST))
        positions = {index: max(starts[index].offset, self._positions.get(index, 0)) for index in partitions}
        self._positions.update(positions)
        consumer = Consumer(cluster, topic.name, {})
        consumer.positions = {index: offset for index, offset in positions.items() if offset < ends[index].offset}
        while consumer.positions:
            for part in await consumer.poll():
                for count in map(parse_count, (record.value for record in part.records)):
                    if count is not None:
                        self._counts[count.key] = count
                self._positions[part.partition] = part.next_offset
                if part.next_offset >= ends[part.partition].offset:
                    del consumer.positions[part.partition]

    def write_report(self) -> AuditReport:
        """Writes report.txt and report.svg, and logs each new fault once."""
        report = self.report()
        for window in report.faults:
            fault = (window.topic, window.start_ms, window.verdict)
            if fault not in self._known_faults:
                self._known_faults.add(fault)
                _LOG.warning("Topic %s, window from %d: %s", *fault)
        if self._plan.report is not None:
            directory = Path(self._plan.report)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "report.txt").write_text(report_table(report), encoding="utf-8")
            (directory / "report.svg").write_text(report_svg(report), encoding="utf-8")
        return report
