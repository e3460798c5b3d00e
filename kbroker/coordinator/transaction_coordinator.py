"""The transaction coordinator of a broker: one shard for each partition of `__transaction_state` that it leads.

Aborts transactions that exceed their timeout, expires idle transactional ids, and verifies for partitions that a
producer's records belong to a transaction. The rules of transactions are in the shards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.coordinator.markers import Markers
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.coordinator.shard_log import Timers
from kbroker.coordinator.shard_table import ShardTable
from kbroker.coordinator.transaction_driver import TransactionDriver
from kbroker.errors import Refusal
from kbroker.names import TRANSACTION_STATE, TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.time_slice import TimeSlice
from kbroker.transaction.replay import TransactionReplay
from kbroker.transaction.shard import TransactionShard

__all__ = ["TransactionConfig", "TransactionCoordinator"]

logger = logging.getLogger(__name__)


class TransactionConfig(NamedTuple):
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    expiration_ms: int = 7 * 24 * 3_600_000


class TransactionCoordinator:
    def __init__(
        self,
        *,
        broker_id: int,
        partitions: PartitionTable,
        config: TransactionConfig,
        clock: Clock,
        timers: Timers,
        markers: Markers,
        create_topic: Callable[[], Awaitable[object]],
    ) -> None:
        self.markers = markers
        self._config = config
        self._clock = clock
        self._timers = timers
        self.shards = ShardTable(
            TRANSACTION_STATE,
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            create_topic=create_topic,
            new_driver=self._new_driver,
            new_replay=lambda driver, report: TransactionReplay(driver.shard, report),
        )

    def _new_driver(self, partition: Partition) -> TransactionDriver:
        return TransactionDriver(
            partition, TransactionShard(), clock=self._clock, timers=self._timers, markers=self.markers
        )

    # Verification of transactional records

    def admit(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition, *, adds: bool
    ) -> ErrorCode:
        """Returns NONE if the producer (id, epoch) may write to a partition in its transaction (KIP-890).

        The partition must be part of the transaction; with `adds` it is added here.
        """
        try:
            driver = self.shards.find(transactional_id)
        except Refusal as refusal:
            return ErrorCode(refusal.code)
        shard = driver.shard
        if not adds:
            return shard.verify(transactional_id, *producer, partition)
        result = shard.add_partitions(transactional_id, *producer, [partition], driver.now_ms(), client_version=2)
        codes: list[int] = []
        # Unlike Kafka, does not wait until the addition is committed before the records are appended.
        driver.apply(transactional_id, result, PendingResponse(lambda done: None, codes.append))
        return ErrorCode(codes[0]) if codes else result.error

    # Background

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._every, self._config.abort_interval_ms, self._abort_timed_out)
            nursery.start_soon(self._every, self._config.expiry_interval_ms, self._expire)
            while True:
                await self.shards.next_work()

    async def _every(self, interval_ms: int, work: Callable[[TransactionDriver], Iterator[None]]) -> None:
        """Runs the work for all loaded shards at every interval, in time slices that end where the work yields."""
        while True:
            await trio.sleep(interval_ms / 1000)
            time_slice = TimeSlice(self._clock)
            for index, driver in list(self.shards.drivers.items()):
                if not driver.is_loaded:
                    continue
                for _ in work(driver):
                    if await time_slice.checkpoint_if_over() and self.shards.drivers.get(index) is not driver:
                        break

    def _abort_timed_out(self, driver: TransactionDriver) -> Iterator[None]:
        yield
        for transactional_id in driver.shard.timed_out(driver.now_ms()):
            if driver.shard.is_ongoing(transactional_id):  # it may have ended in an earlier slice
                driver.abort(transactional_id)
            yield

    def _expire(self, driver: TransactionDriver) -> Iterator[None]:
        """Appends tombstones for idle ids. No yield between search and append: an id may begin a transaction then."""
        yield
        records = list(driver.shard.expire(driver.now_ms(), self._config.expiration_ms))
        if records and (code := driver.log.append(records)):
            logger.error("Could not append tombstones to %s: %s", TRANSACTION_STATE, ErrorCode(code).name)
