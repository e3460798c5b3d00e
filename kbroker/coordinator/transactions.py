"""The transaction coordinator of a broker: a shard for each partition of `__transaction_state` that it leads.

Aborts what takes too long, forgets ids that are idle, and answers partitions that ask whether a producer's records
belong to a transaction. What becomes of a transaction is the shards' business.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change
from kbroker.controller.image import Image
from kbroker.coordinator.markers import Markers
from kbroker.coordinator.shard_log import Timers
from kbroker.coordinator.shard_table import ShardTable
from kbroker.coordinator.ticket import Ticket
from kbroker.coordinator.transaction_driver import TransactionDriver
from kbroker.errors import Refusal
from kbroker.names import TRANSACTION_STATE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
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
        self._shards = ShardTable(
            TRANSACTION_STATE,
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            create_topic=create_topic,
            new_driver=self._new_driver,
            new_replay=lambda driver, report: TransactionReplay(driver.shard, report),
        )

    async def ensure_topic(self) -> None:
        await self._shards.ensure_topic()

    @property
    def has_topic(self) -> bool:
        return self._shards.partition_count > 0

    def partition_for(self, transactional_id: str) -> int:
        return self._shards.partition_for(transactional_id)

    def find(self, transactional_id: str) -> TransactionDriver:
        """Refusal if it is not here, or not yet."""
        return self._shards.find(transactional_id)

    def loaded(self) -> Iterable[TransactionDriver]:
        """Every shard here, for listings; Refusal while one is not loaded."""
        return self._shards.loaded()

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        self._shards.on_image(image, changes)

    def stop(self) -> None:
        self._shards.stop()

    def _new_driver(self, partition: Partition) -> TransactionDriver:
        return TransactionDriver(
            partition, TransactionShard(), clock=self._clock, timers=self._timers, markers=self.markers
        )

    # For partitions that are written to

    def admit(
        self, transactional_id: str, producer: tuple[int, int], partition: tuple[str, int], *, adds: bool
    ) -> ErrorCode:
        """Whether records of that producer (id, epoch) may enter a partition as part of its transaction: because the
        partition was added to it, or, with `adds`, by adding it here (KIP-890)."""
        try:
            driver = self.find(transactional_id)
        except Refusal as refusal:
            return ErrorCode(refusal.code)
        if not adds:
            return driver.shard.verify(transactional_id, *producer, partition)
        step = driver.shard.add_partitions(transactional_id, *producer, [partition], driver.now_ms(), client_version=2)
        codes: list[int] = []
        # Nobody has to wait until this is committed: the answer to the records comes later than that.
        driver.take(transactional_id, step, Ticket(lambda done: None, codes.append))
        return ErrorCode(codes[0]) if codes else step.error

    # Background

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._every, self._config.abort_interval_ms, self._abort_timed_out)
            nursery.start_soon(self._every, self._config.expiry_interval_ms, self._expire)
            while True:
                await self._shards.next_work()

    async def _every(self, interval_ms: int, work: Callable[[TransactionDriver], Iterator[None]]) -> None:
        """Of all shards; others have their turn after each, and wherever the work yields."""
        while True:
            await trio.sleep(interval_ms / 1000)
            for index, driver in list(self._shards.drivers.items()):
                if not driver.is_loaded:
                    continue
                for _ in work(driver):
                    await trio.lowlevel.checkpoint()
                    if self._shards.drivers.get(index) is not driver:
                        break

    def _abort_timed_out(self, driver: TransactionDriver) -> Iterator[None]:
        yield
        for transactional_id in driver.shard.timed_out(driver.now_ms()):
            if driver.shard.is_ongoing(transactional_id):  # it may have ended meanwhile
                driver.abort(transactional_id)
            yield

    def _expire(self, driver: TransactionDriver) -> Iterator[None]:
        """All that is found at once is written at once: between a look and a tombstone an id may come to life."""
        yield
        records = list(driver.shard.expire(driver.now_ms(), self._config.expiration_ms))
        if records and (code := driver.append(records)):
            logger.error("%s refuses tombstones: %s", TRANSACTION_STATE, ErrorCode(code).name)
