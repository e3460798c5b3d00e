"""Transforms topics into a topic: SQL, windows, joins and aggregations, exactly once from offsets to records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.pipeline.brokers import check_source, check_topic
from kbroker.pipeline.definition import (
    EXACTLY_ONCE,
    Pipeline,
    PipelineStep,
    SqlStep,
    TableOnDisk,
    TopicSink,
    TopicsToRead,
    ValueFormat,
)
from kbroker.pipeline.frames import apply_steps, count_rows, stream_topics
from kbroker.pipeline.jobs import Job, StreamJob
from kbroker.pipeline.kinds import TransformJob
from kbroker.pipeline.ownership import claim_checkpoint
from kbroker.pipeline.streams import DEAD_LETTERS, MAIN, record_columns, write_dead_letters, write_topic
from kbroker.pipeline.values import parse_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["frames", "start", "transform"]


def transform(
    spark: SparkSession,
    *,
    bootstrap: str,
    topics: Sequence[str],
    to: str,
    checkpoint: str,
    sql: str | None = None,
    values: ValueFormat | None = None,
    steps: Sequence[PipelineStep] = (),
    tables: Mapping[str, TableOnDisk] | None = None,
    through: Callable[[DataFrame], DataFrame] | None = None,
    delivery: str = EXACTLY_ONCE,
    output_mode: str = "append",
    trigger: str = "0 seconds",
    name: str = "transform",
    options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Starts a query that writes the result of `steps`, `sql` and `through` to the topic `to`, and returns it."""
    source = TopicsToRead(bootstrap, tuple(topics), options=dict(options or {}))
    all_steps = (*steps, SqlStep(sql)) if sql is not None else tuple(steps)
    sink = TopicSink(bootstrap, to, delivery, dict(sink_options or {}))
    job = TransformJob(source, sink, values, all_steps, dict(tables or {}), output_mode)
    return _start(spark, job, name=name, location=checkpoint, trigger=trigger, through=through)[0].query


def start(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    job: TransformJob = pipeline.job
    return [*_start(spark, job, name=pipeline.name, location=pipeline.checkpoint, trigger=pipeline.trigger)]


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Returns the frames of the queries, by their names."""
    job: TransformJob = pipeline.job
    records, rejected = _frames(spark, job)
    planned = {MAIN: record_columns(records, job.sink.topic)}
    if rejected is not None and job.values is not None and job.values.dead_letters is not None:
        planned[DEAD_LETTERS] = rejected
    return planned


def _frames(spark: SparkSession, job: TransformJob) -> tuple[DataFrame, DataFrame | None]:
    records, rejected = stream_topics(spark, job.source), None
    if job.values is not None:
        records, rejected = parse_values(records, job.values)
    return apply_steps(records, job.steps, job.tables), rejected


def _start(
    spark: SparkSession,
    job: TransformJob,
    *,
    name: str,
    location: str,
    trigger: str,
    through: Callable[[DataFrame], DataFrame] | None = None,
) -> list[StreamJob]:
    cluster_id = check_source(job.source)
    letters = job.values.dead_letters if job.values is not None else None
    for topic in (job.sink.topic, letters.topic if letters is not None else None):
        if topic is not None:
            check_topic(job.sink.bootstrap, topic, job.sink.options)
    checkpoint = claim_checkpoint(location, name=name, kind="transform", destination=str(job.sink.topic))
    checkpoint.check_cluster(cluster_id)
    records, rejected = _frames(spark, job)
    if through is not None:
        records = through(records)
    query = write_topic(count_rows(records), job.sink, checkpoint, trigger=trigger, output_mode=job.output_mode)
    jobs = [StreamJob(query, name)]
    if rejected is not None and letters is not None:
        query = write_dead_letters(rejected, letters, checkpoint, sink=job.sink, trigger=trigger)
        jobs.append(StreamJob(query, f"{name} dead letters"))
    return jobs
