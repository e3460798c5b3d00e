"""A transactional producer on the wire, of the old kind and of the new, and a reader of committed records."""

from __future__ import annotations

import heapq
from typing import Any

import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_partitions_to_txn, list_offsets, offset_fetch, txn_offset_commit
from kbroker.protocol.record_batch import iter_headers
from kbroker.protocol.records import Record, build_batch, iter_records, read_end_transaction_marker
from tests.broker.batches import now_ms
from tests.broker.wire import Client, produce_members

TRANSACTION = 1
RETRY_SECONDS = 0.02


class TransactionalProducer:
    """`version` 0: adds its partitions itself. 2: epochs grow with every transaction.

    `client` is connected to the coordinator; `leader` and `groups`, if they are others, to the leader of the partitions
    and to the group coordinator.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        *,
        version: int = 0,
        leader: Client | None = None,
        groups: Client | None = None,
    ) -> None:
        self.client = client
        self.leader = leader
        self.groups = groups
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    async def find_coordinator(self) -> None:
        asked = {"key": self.transactional_id, "key_type": TRANSACTION}
        answer = await self.client.ask("FindCoordinator", 2, **asked)
        assert answer.error_code == 0

    async def init_once(self, *, timeout_ms: int = 60_000, version: int = 4, **members: Any) -> Any:
        asked = {"transactional_id": self.transactional_id, "transaction_timeout_ms": timeout_ms, **members}
        return await self.client.ask("InitProducerId", version, **asked)

    async def init(self, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        """Retries while the error is retriable."""
        await self.find_coordinator()
        again = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        answer = await self.init_once(timeout_ms=timeout_ms)
        with trio.fail_after(30):
            while answer.error_code in again:
                await trio.sleep(RETRY_SECONDS)
                answer = await self.init_once(timeout_ms=timeout_ms)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        return self

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        asked = {f"v3_and_below_{name}": value for name, value in self.named.items()}
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        answer = await self.client.ask("AddPartitionsToTxn", version, v3_and_below_topics=topics, **asked)
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        return [result.partition_error_code for result in results]

    async def send_once(self, topic: str, value: bytes, *, partition: int = 0, version: int | None = None) -> int:
        """Returns the error code. An accepted batch advances the sequence."""
        sequence = self.sequences.get((topic, partition), 0)
        batch = build_batch(
            [Record(0, now_ms(), b"k", value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        if version is None:
            version = 12 if self.version >= 2 else 9
        members = produce_members(topic, batch, partition=partition)
        response = await (self.leader or self.client).ask(
            "Produce", version, transactional_id=self.transactional_id, **members
        )
        code: int = response.responses[0].partition_responses[0].error_code
        if not code:
            self.sequences[topic, partition] = sequence + 1
        return code

    async def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        if self.version < 2:
            assert await self.add(topic, partition) == [0]
        for value in values:
            code = await self.send_once(topic, value, partition=partition)
            assert code == 0, ErrorCode(code)

    async def end_once(self, *, is_commit: bool, version: int | None = None) -> Any:
        if version is None:
            version = 5 if self.version >= 2 else 3
        return await self.client.ask("EndTxn", version, committed=is_commit, **self.named)

    async def end(self, *, is_commit: bool) -> None:
        answer = await self.end_once(is_commit=is_commit)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        if self.version >= 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    async def commit(self) -> None:
        await self.end(is_commit=True)

    async def abort(self) -> None:
        await self.end(is_commit=False)

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, version: int | None = None, **members: Any
    ) -> int:
        """Commits offsets in the transaction. Returns the error code."""
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topics = [txn_offset_commit.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])]
        if version is None:
            version = 5 if self.version >= 2 else 3
        asked = {**self.named, "group_id": group, "topics": topics, **members}
        answer = await (self.groups or self.client).ask("TxnOffsetCommit", version, **asked)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    async def add_offsets(self, group: str, *, version: int = 3) -> int:
        answer = await self.client.ask("AddOffsetsToTxn", version, group_id=group, **self.named)
        code: int = answer.error_code
        return code


async def read_committed(client: Client, topic: str, *, partition: int = 0) -> list[bytes]:
    """Reads as a read_committed consumer: up to the last stable offset, without aborted transactions."""
    found: list[bytes] = []
    offset = 0
    while True:
        answer = await client.fetch(topic, offset, partition=partition, isolation_level=1)
        assert answer.error_code == 0
        if offset >= answer.last_stable_offset:
            return found
        starts = [(aborted.first_offset, aborted.producer_id) for aborted in answer.aborted_transactions]
        heapq.heapify(starts)
        aborted: set[int] = set()
        data = bytes(answer.records)
        for position, header in iter_headers(data):
            while starts and starts[0][0] <= header.last_offset:
                aborted.add(heapq.heappop(starts)[1])
            records = list(iter_records(data, position))
            offset = header.last_offset + 1
            if header.is_control:
                marker = read_end_transaction_marker(records[0])
                if marker is not None and not marker.is_commit:
                    aborted.discard(header.producer_id)
            elif header.producer_id not in aborted:
                found += [record.value or b"" for record in records]


async def end_offset(client: Client, topic: str, isolation_level: int) -> int:
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])]
    answer = await client.ask("ListOffsets", 7, replica_id=-1, isolation_level=isolation_level, topics=topics)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


async def committed_offset(client: Client, group: str, topic: str, *, require_stable: bool = False) -> tuple[int, int]:
    """Error code and offset."""
    asked = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=asked)]
    answer = (await client.ask("OffsetFetch", 8, groups=groups, require_stable=require_stable)).groups[0]
    if answer.error_code:
        return answer.error_code, -1
    found = answer.topics[0].partitions[0]
    return found.error_code, found.committed_offset
