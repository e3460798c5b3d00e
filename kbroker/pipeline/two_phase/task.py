"""The part of a task: writes Arrow batches in one transaction and leaves it open.

Columns: value, and if present key, topic, partition, headers, timestamp. While a request is under way the next Arrow
batch is read and encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import trio

from kbroker.client.address import parse_addresses
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.producing import ProducerBatch
from kbroker.client.transactional_producing import ProducerTransaction, TransactionalProducer, init_producer
from kbroker.clock import SystemClock
from kbroker.errors import UserError
from kbroker.pipeline.arrow.encoding import RecordColumns, as_binary, binary_bounds, encode_records, seal_batch
from kbroker.pipeline.arrow.partitioning import partitions_of_keys, spread
from kbroker.pipeline.client_options import connection_security
from kbroker.pipeline.two_phase.decision import TaskResult
from kbroker.pipeline.two_phase.settings import SinkSettings

__all__ = ["TaskPlan"]

ColumnArray = Any
Round = tuple[str, dict[int, ProducerBatch]]
"""Topic, and one batch for each partition: one request to each leader."""

# Records without a key go to another partition after so many bytes.
_RUN_BYTES: Final = 64 * 1024
_END: Final = object()


class TaskPlan(NamedTuple):
    """Travels from the driver to the tasks of one batch."""

    settings: SinkSettings
    prefix: str
    """Begin of all transactional ids of this batch and this run of the driver."""
    leases: dict[int, ProducerTransaction]
    """Task -> the transaction that its first attempt may begin without InitProducerId."""

    def write(self, index: int, attempt: int, unique: int, batches: Iterator[Any]) -> TaskResult:
        """Runs one attempt of a task. `unique` differs for all attempts of the task.

        Only the first attempt uses a lease or the id of its task; others use ids of their own. So an attempt that comes
        late cannot fence an attempt that Spark has accepted.
        """
        lease = self.leases.get(index) if attempt == 0 else None
        transactional_id = f"{self.prefix}/{index}" if attempt == 0 else f"{self.prefix}/{index}/{unique}"
        return trio.run(_run, self.settings, index, attempt, lease, transactional_id, batches)


async def _run(
    settings: SinkSettings,
    index: int,
    attempt: int,
    lease: ProducerTransaction | None,
    transactional_id: str,
    batches: Iterator[Any],
) -> TaskResult:
    async with open_cluster(
        parse_addresses(settings.bootstrap),
        client_id=transactional_id,
        retry_s=settings.retry_s,
        security=connection_security(settings.security),
    ) as cluster:
        writer = TaskWriter(cluster, settings, lease, transactional_id, first_partition=index)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await _write_all(writer, batches, nursery)
            except Exception as problem:  # raised below: the caller does not expect an exception group
                failure = problem
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        transaction = writer.transaction if writer.record_count else None
        return TaskResult(index, attempt, writer.record_count, transaction)


async def _write_all(writer: TaskWriter, batches: Iterator[Any], nursery: trio.Nursery) -> None:
    while True:
        # In a thread: the loop must go on with the request that is under way.
        batch = await trio.to_thread.run_sync(next, batches, _END)
        if batch is _END:
            break
        await writer.write(batch, nursery)
    await writer.wait_sent()


class TaskWriter:
    """Encodes Arrow batches and sends them, one request to each leader at a time."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SinkSettings,
        lease: ProducerTransaction | None,
        transactional_id: str,
        *,
        first_partition: int,
    ) -> None:
        self.transaction = lease
        self.record_count = 0
        self._cluster = cluster
        self._settings = settings
        self._transactional_id = transactional_id
        self._keyless_partition = first_partition
        self._producer: TransactionalProducer | None = None
        self._is_sent = trio.Event()
        self._is_sent.set()
        self._failure: Exception | None = None

    async def write(self, batch: Any, nursery: trio.Nursery) -> None:
        """Encodes a batch and begins to send it, after the previous one is acknowledged."""
        if batch.num_rows == 0:
            return
        producer = await self._open()
        rounds: list[Round] = []
        for topic, columns, chosen in self._split_topics(batch):
            count = len((await self._cluster.topic(topic, may_create=True)).partitions)
            rounds += self._encode(producer, topic, columns, self._partitions(columns, chosen, count, topic))
        await self.wait_sent()
        self._is_sent = trio.Event()
        nursery.start_soon(self._send, producer, rounds)
        self.record_count += batch.num_rows

    async def wait_sent(self) -> None:
        await self._is_sent.wait()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> TransactionalProducer:
        if self._producer is None:
            if self.transaction is None:
                timeout_ms = self._settings.transaction_timeout_ms
                self.transaction = await init_producer(self._cluster, self._transactional_id, timeout_ms)
            self._producer = TransactionalProducer(self._cluster, self.transaction, codec=self._settings.codec)
        return self._producer

    async def _send(self, producer: TransactionalProducer, rounds: list[Round]) -> None:
        try:
            for topic, batches in rounds:
                await producer.send(topic, batches)
        except Exception as failure:  # raised by wait_sent: the caller does not expect an exception group
            self._failure = failure
        finally:
            self._is_sent.set()

    def _split_topics(self, batch: Any) -> Iterator[tuple[str, RecordColumns, ColumnArray | None]]:
        """Yields topic, columns and the column of partitions (None: there is none)."""
        columns, partitions = _columns_of(batch), _column(batch, "partition")
        if self._settings.topic is not None:
            yield self._settings.topic, columns, partitions
            return
        topics = _column(batch, "topic")
        if topics is None or topics.null_count:
            raise UserError("A record has no topic: set the option topic, or fill the column topic in every row.")
        names = topics.dictionary_encode()
        numbers = names.indices.to_numpy()
        if len(names.dictionary) == 1:
            yield str(names.dictionary[0]), columns, partitions
            return
        for number, name in enumerate(names.dictionary.to_pylist()):
            rows = np.flatnonzero(numbers == number)
            yield name, columns.take(rows), None if partitions is None else partitions.take(pa.array(rows))

    def _partitions(self, columns: RecordColumns, chosen: ColumnArray | None, count: int, topic: str) -> ColumnArray:
        """Returns the partition of each row: the chosen one, else by key, else one after the other."""
        data, starts, lengths = binary_bounds(columns.key)
        rows = columns.row_count
        partitions = np.full(rows, -1, dtype=np.int32)
        if chosen is not None:
            partitions = chosen.cast(pa.int32()).fill_null(-1).to_numpy().copy()
            wrong = partitions[(partitions < -1) | (partitions >= count)]
            if len(wrong):
                raise UserError(f"Topic '{topic}' has {count} partitions; partition {wrong[0]} does not exist.")
        keyed = np.flatnonzero((partitions < 0) & (lengths >= 0))
        if len(keyed):
            partitions[keyed] = partitions_of_keys(data, starts[keyed], lengths[keyed], count)
        keyless = np.flatnonzero(partitions < 0)
        if len(keyless):
            size = columns.value.nbytes * len(keyless) // rows
            partitions[keyless] = spread(len(keyless), size, count, self._keyless_partition, _RUN_BYTES)
            self._keyless_partition = int(partitions[keyless[-1]]) + 1
        return partitions

    def _encode(
        self, producer: TransactionalProducer, topic: str, columns: RecordColumns, partitions: ColumnArray
    ) -> list[Round]:
        if np.any(partitions[1:] < partitions[:-1]):
            order = np.argsort(partitions.astype(np.int16) if partitions.max() < 1 << 15 else partitions, kind="stable")
            columns, partitions = columns.take(order), partitions[order]
        rounds: list[dict[int, ProducerBatch]] = []
        counts: dict[int, int] = {}
        for records in encode_records(columns, partitions, self._settings.batch_bytes):
            number = counts[records.partition] = counts.get(records.partition, -1) + 1
            if number == len(rounds):
                rounds.append({})
            rounds[number][records.partition] = seal_batch(
                records,
                codec=self._settings.codec,
                transaction=producer.transaction,
                base_sequence=producer.take_sequence(topic, records.partition, record_count=records.record_count),
            )
        return [(topic, batches) for batches in rounds]


def _column(batch: Any, name: str) -> ColumnArray | None:
    position = batch.schema.get_field_index(name)
    return batch.column(position) if position >= 0 else None


def _columns_of(batch: Any) -> RecordColumns:
    rows = batch.num_rows
    key, value, headers = (_column(batch, name) for name in ("key", "value", "headers"))
    if value is None:
        raise UserError("The records have no column value: the exactly-once sink needs one, of type binary or string.")
    if headers is not None and headers.null_count == rows:
        headers = None
    return RecordColumns(
        pa.nulls(rows, pa.binary()) if key is None else as_binary(key),
        as_binary(value),
        _timestamps(_column(batch, "timestamp"), rows),
        headers,
    )


def _timestamps(column: ColumnArray | None, rows: int) -> ColumnArray:
    """Returns ms since the epoch. A row without a timestamp gets the current time."""
    now = SystemClock().now_ms()
    if column is None:
        return np.full(rows, now, dtype=np.int64)
    micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).fill_null(now * 1000)
    return micros.to_numpy() // 1000
