"""A producer for one topic: records gathered into one batch for each partition, sent to their leaders together.

With acks=all it is idempotent where the broker lets it: a batch that is sent again is stored once. Records with a key
go where Kafka's own clients put them; those without stay on one partition until the next flush.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Answer, Cluster, Topic
from kbroker.client.connection import REQUEST_SECONDS, Connection
from kbroker.client.failures import BrokerRefusal
from kbroker.client.partitioning import partition_of_key
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kbroker.protocol.records import Header, Record, build_batch
from kbroker.protocol.registry import api

__all__ = ["ACKS_ALL", "BATCH_BYTES", "NO_ACKS", "Producer", "Sent"]

PRODUCE: Final = api(0)
INIT_PRODUCER_ID: Final = api(22)

ACKS_ALL: Final = -1
NO_ACKS: Final = 0
# Well under the 1 MB that a broker takes by default, whatever the codec makes of it.
BATCH_BYTES: Final = 256 * 1024

_LAST_WITH_NAMES: Final = 12
_FIRST_WITH_MAGIC_2: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_RECORD_OVERHEAD: Final = 24
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class Sent(NamedTuple):
    partition: int
    base_offset: int
    """-1 with acks=0: nobody said."""
    record_count: int


class _Batch(NamedTuple):
    data: bytearray
    record_count: int


class Producer:
    """`add` until it says that a flush is due, then `flush`."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        acks: int = ACKS_ALL,
        codec: int = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
        may_create: bool = True,
        timeout_ms: int = 30_000,
    ) -> None:
        self._cluster = cluster
        self._topic_name = topic
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._may_create = may_create
        self._timeout_ms = timeout_ms
        self._partition_count = 0
        self._keyless_partition = 0
        self._records: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_PRODUCER_EPOCH
        self._sequences: dict[int, int] = {}

    async def start(self) -> None:
        """Finds the topic, or has it created, and gets a producer id."""
        topic = await self._cluster.topic(self._topic_name, may_create=self._may_create)
        self._partition_count = len(topic.partitions)
        if self._acks == ACKS_ALL:
            await self._become_idempotent()

    async def _become_idempotent(self) -> None:
        connection = await self._cluster.any_connection()
        if not connection.serves(INIT_PRODUCER_ID):
            return
        patience = self._cluster.patience()
        while True:
            response = await connection.ask(INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=60_000)
            if response.error_code == ErrorCode.NONE:
                self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
                return
            refusal = BrokerRefusal(response.error_code, "a producer id")
            if not refusal.code.retriable:
                raise refusal
            await patience.pause(refusal)

    def add(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int,
    ) -> bool:
        """True if the batch of its partition is full: flush before more is added."""
        assert self._partition_count, "start comes first"
        if partition is None:
            partition = self._keyless_partition if key is None else partition_of_key(key, self._partition_count)
        records = self._records.setdefault(partition, [])
        records.append(Record(len(records), timestamp_ms, key, value, tuple(headers)))
        size = self._sizes.get(partition, 0) + _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") + 4 for name, content in headers)
        self._sizes[partition] = size
        return size >= self._batch_bytes

    async def flush(self) -> list[Sent]:
        """Sends everything that was added; returns when it is acknowledged as `acks` says."""
        if not self._records:
            return []
        gathered, self._records, self._sizes = self._records, {}, {}
        self._keyless_partition = (self._keyless_partition + 1) % self._partition_count
        batches = {index: self._build(index, records) for index, records in gathered.items()}
        offsets = await self._cluster.ask_leaders(
            self._topic_name, batches, self._send_to_leader, may_create=self._may_create
        )
        return [Sent(index, offsets[index], batch.record_count) for index, batch in sorted(batches.items())]

    def _build(self, partition: int, records: list[Record]) -> _Batch:
        sequence = NO_SEQUENCE
        if self._producer_id != NO_PRODUCER_ID:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + len(records) & _SEQUENCE_MASK
        data = build_batch(
            records,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
        )
        return _Batch(data, len(records))

    async def _send_to_leader(
        self, connection: Connection, topic: Topic, batches: Mapping[int, _Batch]
    ) -> dict[int, Answer]:
        from kbroker.protocol.messages.produce import PartitionProduceData, TopicProduceData

        data = [PartitionProduceData(index=index, records=batch.data) for index, batch in batches.items()]
        named = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=data)
        at_least = _FIRST_WITH_ZSTD if self._codec == Codec.ZSTD else _FIRST_WITH_MAGIC_2
        at_most = None if topic.has_id else _LAST_WITH_NAMES
        request: dict[str, Any] = {"acks": self._acks, "timeout_ms": self._timeout_ms, "topic_data": [named]}
        if self._acks == NO_ACKS:
            await connection.tell(PRODUCE, at_least=at_least, at_most=at_most, **request)
            return {index: Answer(ErrorCode.NONE, -1) for index in batches}
        timeout_s = self._timeout_ms / 1000 + REQUEST_SECONDS
        response = await connection.ask(PRODUCE, at_least=at_least, at_most=at_most, timeout_s=timeout_s, **request)
        return {
            each.index: _answer_of(each) for answered in response.responses for each in answered.partition_responses
        }


def _answer_of(partition: Any) -> Answer:
    if partition.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return Answer(ErrorCode.NONE, partition.base_offset)  # an earlier attempt has arrived after all
    message = partition.error_message
    for each in partition.record_errors or ():
        message = each.batch_index_error_message or message
    return Answer(partition.error_code, partition.base_offset, message)
