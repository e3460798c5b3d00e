"""Producer for one topic: collects records into one batch for each partition, and sends all batches on flush.

With acks=all it is idempotent if the broker supports InitProducerId: a retried batch is stored once. Records with a key
use Kafka's default partitioner; records without a key stay on a random partition for a batch, as with stock producers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import REQUEST_SECONDS, BrokerConnection
from kbroker.client.failures import BrokerRefusal
from kbroker.client.partitioning import partition_of_key
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kbroker.protocol.records import Header, Record, build_batch
from kbroker.protocol.registry import api

__all__ = ["ACKS_ALL", "BATCH_BYTES", "NO_ACKS", "Producer", "ProducerBatch", "Sent", "send_batches"]

PRODUCE: Final = api(0)
INIT_PRODUCER_ID: Final = api(22)

ACKS_ALL: Final = -1
NO_ACKS: Final = 0
# Well below a broker's default message.max.bytes of 1 MiB, even if compression makes the batch larger.
BATCH_BYTES: Final = 256 * 1024

_LAST_WITH_NAMES: Final = 12
_FIRST_WITH_MAGIC_2: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_RECORD_OVERHEAD: Final = 24
_STICKY_BYTES: Final = 16 * 1024
"""Records without a key change the partition after this many bytes: batch.size of Java producers (KIP-794)."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_REFUSED_IDS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED.value: "Producing needs the right to WRITE to a topic, or IDEMPOTENT_WRITE "
    "on the cluster."
}
"""Error code of InitProducerId -> its reason. The code alone seems to ask for a right to manage the cluster."""


class Sent(NamedTuple):
    partition: int
    base_offset: int
    """-1 with acks=0, which has no response."""
    record_count: int


class ProducerBatch(NamedTuple):
    data: bytes | bytearray
    record_count: int


class Producer:
    """Call `add` until it returns True, then `flush`. `start` must be called first."""

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
        random_below: Callable[[int], int] | None = None,
    ) -> None:
        self._cluster = cluster
        self._random_below = random_below or Random().randrange
        self._topic_name = topic
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._may_create = may_create
        self._timeout_ms = timeout_ms
        self.counts: dict[int, int] = {}
        """Records that were written to each partition."""
        self._partition_count = 0
        self._keyless_partition = 0
        self._keyless_bytes = 0
        self._records: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_PRODUCER_EPOCH
        self._sequences: dict[int, int] = {}

    async def start(self) -> None:
        """Looks up or creates the topic, and fetches a producer id."""
        topic = await self._cluster.topic(self._topic_name, may_create=self._may_create)
        self._partition_count = len(topic.partitions)
        self._choose_keyless_partition()
        if self._acks == ACKS_ALL:
            await self._become_idempotent()

    def _choose_keyless_partition(self) -> None:
        self._keyless_partition = self._random_below(self._partition_count)
        self._keyless_bytes = 0

    async def _become_idempotent(self) -> None:
        connection = await self._cluster.any_connection()
        if not connection.serves(INIT_PRODUCER_ID):
            return
        backoff = self._cluster.backoff()
        while True:
            response = await connection.send(INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=60_000)
            if response.error_code == ErrorCode.NONE:
                self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch
                return
            subject = f"topic {self._topic_name}"
            refusal = BrokerRefusal(response.error_code, subject, _REFUSED_IDS.get(response.error_code))
            if not refusal.code.retriable:
                raise refusal
            await backoff.pause(refusal)

    def add(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int,
    ) -> bool:
        """Adds a record.

        Returns True if the batch of its partition is full: the caller must flush before adding more.
        """
        assert self._partition_count, "call start() first"
        is_keyless = partition is None and key is None
        if partition is None:
            partition = self._keyless_partition if key is None else partition_of_key(key, self._partition_count)
        records = self._records.setdefault(partition, [])
        records.append(Record(len(records), timestamp_ms, key, value, tuple(headers)))
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if headers:
            size += sum(len(name) + len(content or b"") + 4 for name, content in headers)
        self._sizes[partition] = batch_size = self._sizes.get(partition, 0) + size
        if is_keyless:
            self._keyless_bytes += size
            if self._keyless_bytes >= _STICKY_BYTES:
                self._choose_keyless_partition()
        return batch_size >= self._batch_bytes

    async def flush(self) -> list[Sent]:
        """Sends all added records and waits for the acknowledgements that `acks` requires."""
        if not self._records:
            return []
        pending, self._records, self._sizes = self._records, {}, {}
        self._choose_keyless_partition()
        batches = {index: self._build(index, records) for index, records in pending.items()}
        offsets: dict[int, int] = {}
        try:
            await self._cluster.send_to_leaders(
                self._topic_name, batches, self._send_to_leader, may_create=self._may_create, done=offsets
            )
        finally:
            for index in offsets:
                self.counts[index] = self.counts.get(index, 0) + batches[index].record_count
        return [Sent(index, offsets[index], batch.record_count) for index, batch in sorted(batches.items())]

    def _build(self, partition: int, records: list[Record]) -> ProducerBatch:
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
        return ProducerBatch(data, len(records))

    async def _send_to_leader(
        self, connection: BrokerConnection, topic: TopicInfo, batches: Mapping[int, ProducerBatch]
    ) -> dict[int, BrokerResponse]:
        return await send_batches(
            connection, topic, batches, acks=self._acks, codec=self._codec, timeout_ms=self._timeout_ms
        )


async def send_batches(
    connection: BrokerConnection,
    topic: TopicInfo,
    batches: Mapping[int, ProducerBatch],
    *,
    acks: int,
    codec: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    last_version: int | None = None,
) -> dict[int, BrokerResponse]:
    """Sends one batch for each partition to the leader. `last_version`: the last version of Produce to use."""
    from kbroker.protocol.messages.produce import PartitionProduceData, TopicProduceData

    data = [PartitionProduceData(index=index, records=batch.data) for index, batch in batches.items()]
    topic_data = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=data)
    at_least = _FIRST_WITH_ZSTD if codec == Codec.ZSTD else _FIRST_WITH_MAGIC_2
    at_most = last_version if last_version is not None or topic.has_id else _LAST_WITH_NAMES
    request: dict[str, Any] = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [topic_data],
    }
    if acks == NO_ACKS:
        await connection.send_oneway(PRODUCE, at_least=at_least, at_most=at_most, **request)
        return {index: BrokerResponse(ErrorCode.NONE, -1) for index in batches}
    timeout_s = timeout_ms / 1000 + REQUEST_SECONDS
    response = await connection.send(PRODUCE, at_least=at_least, at_most=at_most, timeout_s=timeout_s, **request)
    return {
        partition.index: _broker_response(partition)
        for topic_response in response.responses
        for partition in topic_response.partition_responses
    }


def _broker_response(partition: Any) -> BrokerResponse:
    if partition.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return BrokerResponse(ErrorCode.NONE, partition.base_offset)  # An earlier attempt was stored: not an error.
    message = partition.error_message
    for record_error in partition.record_errors or ():
        message = record_error.batch_index_error_message or message
    return BrokerResponse(partition.error_code, partition.base_offset, message)
