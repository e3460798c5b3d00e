"""Starts the streaming queries of a pipeline: triggers, names, checkpoints, the topic sink and dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from kbroker.errors import UserError
from kbroker.pipeline.definition import AT_LEAST_ONCE, AVAILABLE_NOW, DeadLetters, TopicSink
from kbroker.pipeline.exactly_once import ExactlyOnceSink
from kbroker.pipeline.frames import count_rows
from kbroker.pipeline.ownership import PipelineCheckpoint, claim_table
from kbroker.pipeline.problems import batch_problem
from kbroker.pipeline.session import require_classic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

__all__ = ["DEAD_LETTERS", "MAIN", "begin_stream", "each_batch", "record_columns", "write_dead_letters", "write_topic"]

MAIN: Final = "main"
DEAD_LETTERS: Final = "dead-letters"
DECISIONS: Final = "decisions"
HEADERS: Final = "array<struct<key:string,value:binary>>"

_SINKS: Final[dict[str, ExactlyOnceSink]] = {}


BatchFunction = Callable[["DataFrame", int], None]


def each_batch(write: BatchFunction) -> BatchFunction:
    """Returns the function for `foreachBatch`: like `write`, but its failures have a short text."""

    def write_batch(frame: DataFrame, batch_id: int) -> None:
        try:
            write(frame, batch_id)
        except Exception as failure:
            raise batch_problem(failure) from None

    return write_batch


def begin_stream(frame: DataFrame, checkpoint: PipelineCheckpoint, *, query: str, trigger: str) -> DataStreamWriter:
    """Returns a writer with name, checkpoint and trigger; the caller sets the sink and starts it."""
    name = checkpoint.owner["name"]
    writer = frame.writeStream.queryName(name if query == MAIN else f"{name}-{query}")
    writer = writer.option("checkpointLocation", checkpoint.directory_of(query))
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=trigger)


def record_columns(frame: DataFrame, topic: str | None) -> DataFrame:
    """Returns the columns that a topic takes: topic, partition, key, value, headers, timestamp, as far as they exist.

    Raises UserError if there is no value, or if a value is neither text nor bytes.
    """
    kinds = dict(frame.dtypes)
    if "value" not in kinds:
        raise UserError(f"The last step must return a column 'value' for the topic; it returns: {', '.join(kinds)}")
    if topic is None and "topic" not in kinds:
        raise UserError("Set sink.topic, or let the last step return a column 'topic'")
    chosen: list[Column] = [functions.lit(topic).alias("topic") if topic is not None else functions.col("topic")]
    for name in ("key", "value"):
        if name not in kinds:
            chosen.append(functions.lit(None).cast("binary").alias(name))
        elif kinds[name] in ("string", "binary"):
            chosen.append(functions.col(name).cast("binary").alias(name))
        else:
            raise UserError(
                f"The last step returns '{name}' as {kinds[name]}; a topic takes text or bytes. "
                f"Use to_json({name}) or CAST({name} AS STRING)"
            )
    if "partition" in kinds:
        chosen.append(functions.col("partition").cast("int").alias("partition"))
    if "headers" in kinds:
        chosen.append(functions.col("headers").cast(HEADERS).alias("headers"))
    if "timestamp" in kinds:
        chosen.append(functions.col("timestamp").cast("timestamp").alias("timestamp"))
    return frame.select(*chosen)


def write_topic(
    frame: DataFrame,
    sink: TopicSink,
    checkpoint: PipelineCheckpoint,
    *,
    trigger: str,
    query: str = MAIN,
    output_mode: str = "append",
) -> StreamingQuery:
    """Starts a query that writes records to a topic."""
    records = record_columns(frame, sink.topic)
    writer = begin_stream(records, checkpoint, query=query, trigger=trigger).outputMode(output_mode)
    if sink.delivery == AT_LEAST_ONCE:
        options = {**sink.options, "kafka.bootstrap.servers": sink.bootstrap}
        return writer.format("kafka").options(**options).start()
    opened = exactly_once_sink(frame.sparkSession, sink, checkpoint, query=query)
    return writer.foreachBatch(each_batch(opened.write_batch)).start()


def exactly_once_sink(
    spark: SparkSession, sink: TopicSink, checkpoint: PipelineCheckpoint, *, query: str
) -> ExactlyOnceSink:
    """Returns the sink of a query. Closes the one that an earlier run of the query in this process has left."""
    require_classic(spark, "The exactly-once sink")
    directory = checkpoint.directory_of(f"{DECISIONS}-{query}")
    if directory in _SINKS:
        _SINKS.pop(directory).close()
    name = checkpoint.owner["name"] if query == MAIN else f"{checkpoint.owner['name']}-{query}"
    opened = _SINKS[directory] = ExactlyOnceSink(sink.bootstrap, name, directory, sink.options)
    return opened


def write_dead_letters(
    rejected: DataFrame, letters: DeadLetters, checkpoint: PipelineCheckpoint, *, sink: TopicSink, trigger: str
) -> StreamingQuery:
    """Starts a query that writes rejected records with the reason and the original bytes, to a topic or a directory."""
    rejected = count_rows(rejected)
    if letters.path is not None:
        claim_table(letters.path, checkpoint)
        writer = begin_stream(rejected, checkpoint, query=DEAD_LETTERS, trigger=trigger)
        return writer.format("parquet").option("path", letters.path).start()
    added = functions.array(
        _header("kbroker.reason", functions.col("reason")),
        _header("kbroker.topic", functions.col("topic")),
        _header("kbroker.partition", functions.col("partition").cast("string")),
        _header("kbroker.offset", functions.col("offset").cast("string")),
    )
    original = functions.coalesce(functions.col("headers"), functions.array().cast(HEADERS))
    letter = rejected.select("key", "value", "timestamp", functions.concat(original, added).alias("headers"))
    target = TopicSink(sink.bootstrap, letters.topic, sink.delivery, sink.options)
    return write_topic(letter, target, checkpoint, trigger=trigger, query=DEAD_LETTERS)


def _header(name: str, value: Column) -> Column:
    return functions.struct(functions.lit(name).alias("key"), value.cast("binary").alias("value"))
