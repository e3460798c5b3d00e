"""The transaction coordinator of a broker: one shard for each partition of `__transaction_state` that it leads.

Aborts transactions that exceed their timeout, expires idle transactional ids, and verifies for partitions that a
producer's records belong to a transaction, if necessary through the coordinator on another broker. The rules of
transactions are in the shards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change
from kbroker.controller.image import NO_LEADER, Image
from kbroker.coordinator.admission_requests import PendingAdmission, TransactionAdmission
from kbroker.coordinator.marker_delivery import MarkerDelivery
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.coordinator.shard_log import Timers
from kbroker.coordinator.shard_table import ShardTable
from kbroker.coordinator.transaction_channels import TransactionChannels
from kbroker.coordinator.transaction_driver import TransactionDriver
from kbroker.errors import Refusal
from kbroker.names import TRANSACTION_STATE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.time_slice import TimeSlice
from kbroker.transaction.replay import TransactionReplay
from kbroker.transaction.result import TransactionResult
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
        markers: MarkerDelivery,
        leader_of: Callable[[str, int], int | None],
        channels: TransactionChannels,
        create_topic: Callable[[], Awaitable[object]],
    ) -> None:
        """`leader_of` returns a broker id, NO_LEADER, or None if the partition does not exist."""
        self._broker_id = broker_id
        self._leader_of = leader_of
        self._channels = channels
        self._markers = markers
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
            partition, TransactionShard(), clock=self._clock, timers=self._timers, markers=self._markers
        )

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        self._channels.on_image(image, changes)
        self.shards.on_image(image, changes)

    # Verification of transactional records

    def admit(self, admission: TransactionAdmission, done: Callable[[ErrorCode], None]) -> None:
        """Calls `done` with NONE if the producer may write to the partition in its transaction (KIP-890).

        The partition must be part of the transaction; with `adds` it is added. `done` is called when the coordinator
        has committed that; perhaps before this method returns.
        """
        if not self.shards.has_topic:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        leader = self._leader_of(TRANSACTION_STATE, self.shards.partition_for(admission.transactional_id))
        if leader == self._broker_id:
            self._admit_here(admission, done)
        elif leader is None or leader == NO_LEADER:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._channels.admissions.put(leader, PendingAdmission(admission, done))

    def _admit_here(self, admission: TransactionAdmission, done: Callable[[ErrorCode], None]) -> None:
        transactional_id, producer_id, epoch, adds, partition = admission
        try:
            driver = self.shards.find(transactional_id)
        except Refusal as refusal:
            done(ErrorCode(refusal.code))
            return
        if adds:
            result = driver.shard.add_partitions(
                transactional_id, producer_id, epoch, [partition], driver.now_ms(), client_version=2
            )
        else:
            result = TransactionResult(driver.shard.verify(transactional_id, producer_id, epoch, partition))
        # Even a verification waits until the shard's records are committed: a transaction that the next coordinator
        # does not know would never end in the partition.
        pending = PendingResponse(lambda answer: done(answer.error), lambda code: done(ErrorCode(code)))
        driver.apply(transactional_id, result, pending)

    # Background

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._channels.run)
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
        records = list(driver.shard.expire(now_ms=driver.now_ms(), expiration_ms=self._config.expiration_ms))
        if records and (code := driver.log.append(records)):
            logger.error("Could not append tombstones to %s: %s", TRANSACTION_STATE, ErrorCode(code).name)
