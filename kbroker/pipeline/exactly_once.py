"""Exactly-once sink for Spark: `foreachBatch(sink.write_batch)` in streams, `df.write.format("kbroker")` for batches.

Columns: value, and if present key, topic, partition, headers, timestamp, as in Spark's own Kafka sink. `two_phase/` has
the protocol; this module runs the tasks on Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from kbroker.client.transactional_producing import ProducerTransaction
from kbroker.errors import UserError
from kbroker.pipeline.two_phase.commit import BatchCommitter, abort_open, end_all, in_cluster
from kbroker.pipeline.two_phase.decision import TaskResult
from kbroker.pipeline.two_phase.settings import SinkSettings, read_settings
from kbroker.pipeline.two_phase.task import TaskPlan
from kbroker.pipeline.worker_imports import settle_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ExactlyOnceSink", "TopicDataSource"]

_TYPES: Final = {
    "topic": "string",
    "partition": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}
_RESULT: Final = "task int, attempt int, records long, id string, producer long, epoch int"
_BOOTSTRAP: Final = "kafka.bootstrap.servers"


class ExactlyOnceSink:
    """Writes each batch of a streaming query once, whatever crashes.

    `directory` belongs to this sink: it keeps the decision of the last batch, best inside the query's checkpoint.
    `name` begins all transactional ids. Options: topic, transaction.timeout.ms, delivery.timeout.ms, batch.size,
    compression.type.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        name: str,
        directory: str | os.PathLike[str],
        options: Mapping[str, str] | None = None,
        *,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._committer = BatchCommitter(bootstrap_servers, name, directory, options or {}, on_step=on_step)

    def write_batch(self, df: DataFrame, batch_id: int) -> None:
        """Writes one batch; pass it to `foreachBatch`. Raises UserError if the batch cannot be written."""
        records = select_columns(df, self._committer.settings)
        speculates = df.sparkSession.conf.get("spark.speculation", "false") == "true"

        def run_tasks(plan: TaskPlan) -> list[TaskResult]:
            job = records.mapInArrow(task_of(plan), _RESULT)
            if has_shuffle(job):  # asked of the job itself, which is then planned once
                job = records.localCheckpoint().mapInArrow(task_of(plan), _RESULT)
            return [_read_result(row) for row in job.collect()]

        self._committer.write(batch_id, run_tasks, may_speculate=speculates)

    def close(self) -> None:
        """Releases the lock of the directory, so that another sink of this process may use it."""
        self._committer.close()


def select_columns(df: DataFrame, settings: SinkSettings) -> DataFrame:
    """Returns the columns that the sink writes, in the types that it expects. Raises UserError if one is missing."""
    check_columns(df.schema, settings)
    return df.selectExpr(
        *(f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in _TYPES.items() if name in df.columns)
    )


def check_columns(schema: StructType, settings: SinkSettings) -> None:
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise UserError(f"The records have no column value, only {', '.join(types)}: select one AS value.")
    if settings.topic is None and "topic" not in types:
        raise UserError("The records have no topic: set the option topic, or add a column topic.")
    for name in ("key", "value"):
        if types.get(name, "binary") not in ("string", "binary"):
            raise UserError(
                f"Column {name} has type {types[name]}; cast it to string or binary, for example by to_json."
            )


def has_shuffle(df: DataFrame) -> bool:
    """Whether the last stage of the query reads a shuffle.

    Spark repeats this stage with attempt number 0 if a part of the shuffle is lost, so two attempts would look the
    same. The sink then writes from a checkpoint of the batch on the executors, which is never repeated in this way.
    """
    execution = df._jdf.queryExecution()
    return "Exchange" in execution.executedPlan().toString() or "Shuffle" in execution.toRdd().toDebugString()


def task_of(plan: TaskPlan) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run_task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        context = TaskContext.get()
        result = plan.write(context.partitionId(), context.attemptNumber(), context.taskAttemptId(), batches)
        transactional_id, producer_id, epoch = result.transaction or (None, None, None)
        row = {
            "task": pyarrow.array([result.task], pyarrow.int32()),
            "attempt": pyarrow.array([result.attempt], pyarrow.int32()),
            "records": pyarrow.array([result.record_count], pyarrow.int64()),
            "id": pyarrow.array([transactional_id], pyarrow.string()),
            "producer": pyarrow.array([producer_id], pyarrow.int64()),
            "epoch": pyarrow.array([epoch], pyarrow.int32()),
        }
        yield pyarrow.RecordBatch.from_pydict(row)
        settle_worker()

    return run_task


def _read_result(row: Any) -> TaskResult:
    transaction = None if row["id"] is None else ProducerTransaction(row["id"], row["producer"], row["epoch"])
    return TaskResult(row["task"], row["attempt"], row["records"], transaction)


class TopicDataSource(DataSource):
    """`df.write.format("kbroker")`: all records of a job, or none.

    Register it with `spark.dataSource.register(TopicDataSource)`. A crash of the driver while it ends the transactions,
    within milliseconds, leaves a part of them uncommitted: only streams record a decision.
    """

    @classmethod
    def name(cls) -> str:
        return "kbroker"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = dict(self.options.items())
        bootstrap = next((options.pop(name) for name in list(options) if name.lower() == _BOOTSTRAP), None)
        if bootstrap is None:
            raise UserError(f"Set the option {_BOOTSTRAP} to HOST:PORT of a broker.")
        if overwrite:
            raise UserError("Records can only be added to a topic: use mode('append').")
        name = options.pop("name", "spark")
        settings = read_settings(bootstrap, options)
        check_columns(schema, settings)
        return TransactionalTopicWriter(TaskPlan(settings, f"{name}/{os.urandom(6).hex()}", {}))


@dataclass
class TaskMessage(WriterCommitMessage):
    result: TaskResult


class TransactionalTopicWriter(DataSourceArrowWriter):
    """Copied to the tasks and to the process that commits, so it has no state but its plan."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        # Every attempt has an id of its own: after a lost shuffle two attempts can have the same number.
        unique = context.taskAttemptId()
        message = TaskMessage(self._plan.write(context.partitionId(), 1, unique, iterator))
        settle_worker()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [message.result for message in messages if isinstance(message, TaskMessage)]
        written = [result for result in results if result.transaction is not None]
        ends = in_cluster(self._plan.settings, end_all, written, True)
        if ends.lost:
            lost = sum(result.record_count for result in ends.lost)
            raise UserError(
                f"The broker aborted {len(ends.lost)} of {len(written)} transactions ({lost} records) before they were "
                "committed: the job took longer than transaction.timeout.ms. The other records are in the topic."
            )
        kept = {result.transaction.transactional_id for result in written if result.transaction is not None}
        in_cluster(self._plan.settings, abort_open, f"{self._plan.prefix}/", kept)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        in_cluster(self._plan.settings, abort_open, f"{self._plan.prefix}/", frozenset())
