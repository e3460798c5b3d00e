"""Frames of a pipeline: records of topics, and the steps between source and sink.

Columns of a record: key, value, topic, partition, offset, timestamp, timestampType, headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions

from kbroker.errors import UserError
from kbroker.pipeline.definition import Deduplication, PipelineStep, SqlStep, TableOnDisk, TopicsToRead, Watermark
from kbroker.pipeline.problems import first_line
from kbroker.pipeline.progress import ROWS_OUT
from kbroker.pipeline.session import require_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["apply_steps", "count_rows", "register_tables", "stream_topics", "topic_options"]

RECORDS: Final = "records"


def topic_options(source: TopicsToRead) -> dict[str, str]:
    """Returns the options of Spark's Kafka source."""
    options = {
        "kafka.bootstrap.servers": source.bootstrap,
        "startingOffsets": source.start,
        "includeHeaders": "true",
        # Open and aborted transactions of producers are not records.
        "kafka.isolation.level": "read_committed",
    }
    if source.pattern is not None:
        # Spark searches the pattern anywhere in a name: "orders" would read "orders-bad" too.
        options["subscribePattern"] = f"^(?:{source.pattern})$"
    else:
        options["subscribe"] = ",".join(source.topics)
    if source.max_records_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_records_per_batch)
    return {**options, **source.options}


def stream_topics(spark: SparkSession, source: TopicsToRead) -> DataFrame:
    return spark.readStream.format("kafka").options(**topic_options(source)).load()


def register_tables(spark: SparkSession, tables: Mapping[str, TableOnDisk]) -> None:
    """Makes tables on disk known to SQL under their names."""
    for name, table in tables.items():
        try:
            spark.read.format(table.format).options(**table.options).load(table.path).createOrReplaceTempView(name)
        except AnalysisException as problem:
            raise UserError(f"Table {name} at {table.path} cannot be read: {first_line(problem)}") from problem


def apply_steps(frame: DataFrame, steps: Sequence[PipelineStep], tables: Mapping[str, TableOnDisk]) -> DataFrame:
    """Returns the frame after all steps. Raises UserError if Spark refuses a step."""
    register_tables(frame.sparkSession, tables)
    for number, step in enumerate(steps, 1):
        try:
            frame = _apply(frame, step, has_watermark=any(isinstance(before, Watermark) for before in steps[:number]))
        except (AnalysisException, ParseException) as problem:
            place = f"{step.place}: " if isinstance(step, SqlStep) and step.place else ""
            raise UserError(f"{place}step {number} is not valid: {first_line(problem)}") from problem
    return frame


def _apply(frame: DataFrame, step: PipelineStep, *, has_watermark: bool) -> DataFrame:
    match step:
        case SqlStep(sql):
            require_classic(frame.sparkSession, "A step with SQL")
            # Spark resolves the name at once: later pipelines of the session may use the same view. Spark Connect
            # resolves it when the query starts.
            frame.createOrReplaceTempView(RECORDS)
            result = frame.sparkSession.sql(sql)
            frame.sparkSession.catalog.dropTempView(RECORDS)
            return result
        case Watermark(column, delay):
            return frame.withWatermark(column, delay)
        case Deduplication(columns) if has_watermark:
            # Keeps a key for the delay of the watermark; without a watermark Spark keeps all keys.
            return frame.dropDuplicatesWithinWatermark(list(columns))
        case Deduplication(columns):
            return frame.dropDuplicates(list(columns))


def count_rows(frame: DataFrame) -> DataFrame:
    """Counts the rows on their way to the sink, for the progress of each batch."""
    return frame.observe(ROWS_OUT, functions.count(functions.lit(1)).alias("rows"))
