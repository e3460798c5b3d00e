"""Consumer of one topic: reads records from given offsets on, from all leaders in parallel.

Never joins a group and never commits offsets; callers read their progress from `positions`. With `read_committed`,
records of aborted transactions are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import trio

from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import REQUEST_SECONDS, BrokerConnection
from kbroker.errors import PeerError
from kbroker.protocol.legacy_message_set import iter_message_records
from kbroker.protocol.record_batch import MAGIC_POSITION, BatchHeader, InvalidBatch, iter_headers
from kbroker.protocol.records import ControlType, Record, iter_records, read_control_type
from kbroker.protocol.registry import api

__all__ = ["Consumer", "FetchedPartition", "committed_only", "read_until"]

FETCH: Final = api(1)

MAX_BYTES: Final = 50 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
MAX_WAIT_MS: Final = 500

_LAST_WITH_NAMES: Final = 12
_FIRST_WITH_MAGIC_2: Final = 4


class FetchedPartition(NamedTuple):
    partition: int
    records: list[Record]
    high_watermark: int
    next_offset: int
    """Start offset of the next fetch. Skips control records and gaps."""


class Consumer:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        positions: Mapping[int, int],
        *,
        read_committed: bool = False,
        max_wait_ms: int = MAX_WAIT_MS,
        max_bytes: int = MAX_BYTES,
        partition_bytes: int = PARTITION_BYTES,
    ) -> None:
        self.positions = dict(positions)
        """Partition -> next offset to read. Remove a partition to stop fetching it."""
        self._cluster = cluster
        self._topic = topic
        self._read_committed = read_committed
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._partition_bytes = partition_bytes

    async def poll(self) -> list[FetchedPartition]:
        """Fetches once and returns the partitions with new records. Waits up to `max_wait_ms`, for all leaders."""
        return self.decode(await self.fetch()) if self.positions else []

    async def fetch(self) -> dict[int, Any]:
        """Fetches once. Returns the responses for `decode`: partition -> response."""
        return await self._cluster.send_to_leaders(self._topic, dict(self.positions), self._fetch)

    def decode(self, responses: Mapping[int, Any]) -> list[FetchedPartition]:
        """Returns the partitions with new records, and advances their positions."""
        fetched = []
        for index, response in sorted(responses.items()):
            found = self._read(index, response)
            if found is not None:
                self.positions[index] = found.next_offset
                fetched.append(found)
        return fetched

    async def _fetch(
        self, connection: BrokerConnection, topic: TopicInfo, offsets: Mapping[int, int]
    ) -> dict[int, BrokerResponse]:
        from kbroker.protocol.messages.fetch import FetchPartition, FetchTopic

        partitions = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=self._partition_bytes)
            for index, offset in offsets.items()
        ]
        response = await connection.send(
            FETCH,
            at_least=_FIRST_WITH_MAGIC_2,
            at_most=None if topic.has_id else _LAST_WITH_NAMES,
            timeout_s=self._max_wait_ms / 1000 + REQUEST_SECONDS,
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=1 if self._read_committed else 0,
            topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=partitions)],
        )
        if response.error_code:
            return {index: BrokerResponse(response.error_code, None) for index in offsets}
        return {
            partition.partition_index: BrokerResponse(partition.error_code, partition)
            for topic_response in response.responses
            for partition in topic_response.partitions
        }

    def _read(self, index: int, response: Any) -> FetchedPartition | None:
        data = bytes(response.records or b"")
        start = self.positions[index]
        try:
            if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < 2:
                records = [record for record in iter_message_records(data) if record.offset >= start]
                next_offset = records[-1].offset + 1 if records else start
            else:
                records, next_offset = self._read_batches(data, start, response.aborted_transactions)
        except InvalidBatch as problem:
            raise PeerError(f"partition {index} of topic {self._topic} at offset {start}: {problem}") from None
        if next_offset == start:
            return None
        return FetchedPartition(index, records, response.high_watermark, next_offset)

    def _read_batches(self, data: bytes, start: int, aborted: Any) -> tuple[list[Record], int]:
        batches = iter_headers(data)
        if self._read_committed and aborted:
            batches = committed_only(
                data, [(transaction.producer_id, transaction.first_offset) for transaction in aborted]
            )
        last_offsets = [header.last_offset for _position, header in iter_headers(data)]
        if not last_offsets:
            if data:  # The first batch is larger than the limit and was cut off: raise the limit for the next fetch.
                self._partition_bytes = min(2 * self._partition_bytes, self._max_bytes)
            return [], start
        next_offset = last_offsets[-1] + 1
        if next_offset <= start:
            raise PeerError(f"The response ends before the requested offset {start}")
        records: list[Record] = []
        for position, header in batches:
            if not header.is_control and header.last_offset >= start:
                records += [record for record in iter_records(data, position) if record.offset >= start]
        return records, next_offset


async def read_until(
    consumer: Consumer, ends: Mapping[int, int], *, on_fetch: Callable[[float], None] = lambda seconds: None
) -> AsyncGenerator[FetchedPartition, None]:
    """Yields the records before the end offset of each partition. `on_fetch`: called with the seconds of each fetch."""
    positions = consumer.positions
    while True:
        for index in [index for index, position in positions.items() if position >= ends[index]]:
            del positions[index]
        if not positions:
            return
        start = trio.current_time()
        responses = await consumer.fetch()
        on_fetch(trio.current_time() - start)
        for found in consumer.decode(responses):
            end = ends[found.partition]
            if found.next_offset > end:
                records = [record for record in found.records if record.offset < end]
                yield found._replace(records=records, next_offset=end)
            else:
                yield found


def committed_only(data: bytes, aborted: list[tuple[int, int]]) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the batches that are not part of an aborted transaction.

    `aborted` has the producer id and the first offset of each aborted transaction.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    for position, header in iter_headers(data):
        while waiting and waiting[-1][1] <= header.last_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            if any(read_control_type(record) == ControlType.ABORT for record in iter_records(data, position)):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield position, header
