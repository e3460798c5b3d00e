"""Archives topics into a table partitioned by topic and event date, exactly once: Parquet, Delta Lake or Iceberg.

Spark's file sink, Delta and Iceberg each remember the batches that they have; a repeated batch changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions
from pyspark.sql.types import StructType

from kbroker.errors import UserError
from kbroker.pipeline.brokers import check_source, check_topic
from kbroker.pipeline.client_options import security_options
from kbroker.pipeline.definition import (
    Pipeline,
    PipelineStep,
    TableOnDisk,
    TableSink,
    TopicSink,
    TopicsToRead,
    ValueFormat,
)
from kbroker.pipeline.frames import apply_steps, count_rows, stream_topics
from kbroker.pipeline.jobs import Job, StreamJob
from kbroker.pipeline.kinds import ArchiveJob
from kbroker.pipeline.ownership import PipelineCheckpoint, claim_checkpoint, claim_table
from kbroker.pipeline.streams import DEAD_LETTERS, MAIN, begin_stream, write_dead_letters
from kbroker.pipeline.values import parse_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["archive", "frames", "start"]

PARTITIONED_BY: Final = ("topic", "date")

Through = Callable[["DataFrame"], "DataFrame"]


def archive(
    spark: SparkSession,
    *,
    bootstrap: str,
    checkpoint: str,
    path: str | None = None,
    table: str | None = None,
    format: str = "parquet",  # noqa: A002 - Spark's name for it
    topics: Sequence[str] = (),
    pattern: str | None = None,
    values: ValueFormat | None = None,
    steps: Sequence[PipelineStep] = (),
    tables: Mapping[str, TableOnDisk] | None = None,
    through: Through | None = None,
    trigger: str = "0 seconds",
    name: str = "archive",
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Starts a query that archives topics, and returns it. `through` changes the records before they are written."""
    source = TopicsToRead(bootstrap, tuple(topics), pattern, options=dict(options or {}))
    job = ArchiveJob(source, TableSink(format, path, table), values, tuple(steps), dict(tables or {}))
    return _start(spark, job, name=name, location=checkpoint, trigger=trigger, through=through)[0].query


def start(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    job: ArchiveJob = pipeline.job
    return [*_start(spark, job, name=pipeline.name, location=pipeline.checkpoint, trigger=pipeline.trigger)]


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Returns the frames of the queries, by their names."""
    return {name: frame for name, frame in _frames(spark, pipeline.job).items() if frame is not None}


def _frames(spark: SparkSession, job: ArchiveJob, through: Through | None = None) -> dict[str, DataFrame | None]:
    records, rejected = stream_topics(spark, job.source), None
    if job.values is not None:
        records, rejected = parse_values(records, job.values)
    records = apply_steps(records, job.steps, job.tables)
    if through is not None:
        records = through(records)
    has_letters = job.values is not None and job.values.dead_letters is not None
    return {MAIN: _with_partitions(records), DEAD_LETTERS: rejected if has_letters else None}


def _with_partitions(frame: DataFrame) -> DataFrame:
    """Adds the event date (UTC). Raises UserError if the steps have dropped a column that the table needs."""
    missing = [name for name in ("topic", "timestamp") if name not in frame.columns]
    if "date" in frame.columns:
        missing = [name for name in missing if name != "timestamp"]
    if missing:
        raise UserError(
            f"The last step must return the column {missing[0]}: the table is partitioned by topic and date"
        )
    if "date" in frame.columns:
        return frame
    return frame.withColumn("date", functions.to_date("timestamp"))


def _start(
    spark: SparkSession, job: ArchiveJob, *, name: str, location: str, trigger: str, through: Through | None = None
) -> list[StreamJob]:
    shown = job.sink.table or job.sink.path or ""
    cluster_id = check_source(job.source)
    letters = job.values.dead_letters if job.values is not None else None
    if letters is not None and letters.topic is not None:
        check_topic(job.source.bootstrap, letters.topic, job.source.options)
    checkpoint = claim_checkpoint(location, name=name, kind="archive", destination=shown)
    checkpoint.check_cluster(cluster_id)
    planned = _frames(spark, job, through)
    records, rejected = planned[MAIN], planned[DEAD_LETTERS]
    assert records is not None
    checkpoint.check_columns(column_types(records.schema), table=shown)
    query = _write(spark, count_rows(records), job.sink, checkpoint, trigger)
    jobs = [StreamJob(query, name)]
    if rejected is not None and letters is not None:
        target = TopicSink(job.source.bootstrap, options=security_options(job.source.options))
        query = write_dead_letters(rejected, letters, checkpoint, sink=target, trigger=trigger)
        jobs.append(StreamJob(query, f"{name} dead letters"))
    return jobs


def _write(
    spark: SparkSession, records: DataFrame, sink: TableSink, checkpoint: PipelineCheckpoint, trigger: str
) -> StreamingQuery:
    if sink.format == "iceberg":
        table, records = prepare_iceberg(spark, records, sink)
        writer = begin_stream(records, checkpoint, query=MAIN, trigger=trigger).format("iceberg")
        return writer.option("fanout-enabled", "true").options(**sink.options).toTable(table)
    writer = begin_stream(records, checkpoint, query=MAIN, trigger=trigger).format(sink.format)
    writer = writer.partitionBy(*PARTITIONED_BY).options(**sink.options)
    if sink.format == "delta":
        writer = writer.option("mergeSchema", "true")
        return writer.start(sink.path) if sink.path is not None else writer.toTable(sink.table)
    assert sink.path is not None
    claim_table(sink.path, checkpoint)
    return writer.start(sink.path)


def iceberg_table(spark: SparkSession, sink: TableSink) -> str:
    """Returns the name of an Iceberg table. For a path, sets up a catalog over the directory above it."""
    if sink.table is not None:
        return sink.table
    assert sink.path is not None
    warehouse, _, name = sink.path.rstrip("/").rpartition("/")
    catalog = f"kbroker_{hashlib.sha256(warehouse.encode()).hexdigest()[:12]}"
    spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", warehouse or "/")
    return f"{catalog}.`{name}`"


def prepare_iceberg(spark: SparkSession, records: DataFrame, sink: TableSink) -> tuple[str, DataFrame]:
    """Creates the table or adds new columns to it. Returns its name, and the records with the columns of the table."""
    table = iceberg_table(spark, sink)
    try:
        known = spark.table(table).schema
    except AnalysisException:
        partitions = [functions.col(name) for name in PARTITIONED_BY]
        spark.createDataFrame([], records.schema).writeTo(table).using("iceberg").partitionedBy(*partitions).create()
        return table, records
    for name, kind in added_columns(known, records.schema):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
    columns = [
        functions.col(f"`{field.name}`")
        if field.name in records.columns
        else functions.lit(None).cast(field.dataType).alias(field.name)
        for field in spark.table(table).schema.fields
    ]
    return table, records.select(*columns)


def column_types(schema: StructType, prefix: str = "") -> dict[str, str]:
    """Returns column -> type; fields of structs have dotted names, so that a struct may get new fields."""
    types: dict[str, str] = {}
    for field in schema.fields:
        if isinstance(field.dataType, StructType):
            types |= column_types(field.dataType, f"{prefix}{field.name}.")
        else:
            types[f"{prefix}{field.name}"] = field.dataType.simpleString()
    return types


def added_columns(known: StructType, wanted: StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted name and the type of each column or field that `known` lacks."""
    for field in wanted.fields:
        name = f"{prefix}`{field.name}`"
        if field.name not in known.fieldNames():
            yield name, field.dataType.simpleString()
        elif isinstance(field.dataType, StructType):
            yield from added_columns(known[field.name].dataType, field.dataType, f"{name}.")
