"""The shards of one internal topic: one for each of its partitions that this broker leads.

Follows the metadata image, loads shards when this broker becomes leader, and finds the shard of a key. The rules of
groups and transactions are in the shards.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import Image, TopicImage
from kbroker.coordinator.loader import BatchReplay, Loader
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shard_log import ShardLog
from kbroker.errors import RecoveryNeeded, Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.time_slice import TimeSlice

__all__ = ["Driver", "ShardTable"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_LOADED_AT_ONCE: Final = 64
"""New partitions whose shards are loaded in the turn that creates them: opening a log takes 0.2 ms. At least 50."""


class Driver(Protocol):
    """One shard over its partition."""

    is_loaded: bool

    @property
    def log(self) -> ShardLog: ...

    def on_loaded(self) -> None: ...

    def flush(self) -> None:
        """Writes records that are queued to be written together."""
        ...

    def unload(self) -> None:
        """Stops coordinating: another broker leads the partition now, or this broker stops."""
        ...


D = TypeVar("D", bound=Driver)


class ShardTable(Generic[D]):
    def __init__(
        self,
        topic: str,
        *,
        broker_id: int,
        partitions: PartitionTable,
        clock: Clock,
        create_topic: Callable[[], Awaitable[object]],
        new_driver: Callable[[Partition], D],
        new_replay: Callable[[D, Callable[[Exception], None]], BatchReplay],
    ) -> None:
        """`create_topic` creates the internal topic and returns when its partitions are open.

        `new_replay` gets the driver and a callback for records that cannot be read.
        """
        self._topic = topic
        self._broker_id = broker_id
        self._table = partitions
        self._clock = clock
        self._create_topic = create_topic
        self._new_driver = new_driver
        self._new_replay = new_replay
        self._creating = trio.Lock()
        self.drivers: dict[int, D] = {}
        self._partition_count = 0
        self._is_running = False
        self._to_load: dict[int, None] = {}
        self.work = trio.Event()
        """Set when there is a shard to load. The coordinator sets it for its own background work too."""

    async def ensure_topic(self) -> None:
        async with self._creating:
            if not self._partition_count:
                await self._create_topic()

    @property
    def has_topic(self) -> bool:
        return self._partition_count > 0

    @property
    def is_loading(self) -> bool:
        return any(not driver.is_loaded for driver in self.drivers.values())

    def partition_for(self, key: str) -> int:
        return partition_for(key, self._partition_count)

    def find(self, key: str) -> D:
        """Returns the shard of a group or transactional id.

        Raises Refusal if the topic does not exist yet, another broker coordinates the key, or the shard is not loaded.
        """
        if not self._partition_count:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        driver = self.drivers.get(partition_for(key, self._partition_count))
        if driver is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not driver.is_loaded:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return driver

    def loaded(self) -> Iterable[D]:
        """Returns all shards of this broker, for listings. Raises Refusal if one of them is not loaded."""
        for driver in self.drivers.values():
            if not driver.is_loaded:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            driver.flush()
        return list(self.drivers.values())

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TopicAdded(topic) if topic.name == self._topic:
                    self._follow(topic)
                case PartitionsChanged(name, _) if name == self._topic:
                    self._follow(image.topics[name])
                case TopicRemoved(topic) if topic.name == self._topic:
                    self._partition_count = 0
                    for index in list(self.drivers):
                        self._unload(index)

    def _follow(self, topic: TopicImage) -> None:
        self._partition_count = len(topic.partitions)
        left = _LOADED_AT_ONCE
        for index, state in enumerate(topic.partitions):
            if state.leader != self._broker_id:
                self._unload(index)
            elif index not in self.drivers:
                partition = self._table.get(topic.name, index)
                if partition is not None:
                    self._lead(index, partition, at_once=left > 0)
                    left -= 1

    def _lead(self, index: int, partition: Partition, *, at_once: bool) -> None:
        driver = self.drivers[index] = self._new_driver(partition)
        # Before `run` no log may be read: it may need recovery first.
        if at_once and self._is_running and _is_empty(partition):
            driver.on_loaded()
        else:
            self._to_load[index] = None
            self.work.set()

    def _unload(self, index: int) -> None:
        self._to_load.pop(index, None)
        driver = self.drivers.pop(index, None)
        if driver is not None:
            driver.unload()

    def stop(self) -> None:
        """Flushes queued commits, then unloads all shards; waiting requests get NOT_COORDINATOR."""
        for index, driver in list(self.drivers.items()):
            driver.flush()
            self._unload(index)

    async def next_work(self) -> None:
        """Waits for work, and loads the shards that must be loaded, in time slices."""
        self._is_running = True
        with trio.move_on_after(_RETRY_SECONDS if self._to_load else math.inf):
            await self.work.wait()
        self.work = trio.Event()
        unrecovered: list[int] = []
        time_slice = TimeSlice(self._clock)
        while True:
            await time_slice.checkpoint_if_over()
            if not self._to_load:
                break
            index = next(iter(self._to_load))
            del self._to_load[index]
            driver = self.drivers.get(index)
            partition = self._table.get(self._topic, index)
            if driver is None or partition is None:
                continue
            try:
                await self._load(driver, partition)
            except RecoveryNeeded:
                unrecovered.append(index)  # maintenance recovers the log; tried again after _RETRY_SECONDS
                continue
            except StorageFailure as failure:
                logger.error(
                    "Could not load %s-%d; it has no coordinator on this broker: %s", self._topic, index, failure
                )
                self._unload(index)
            # Leadership may have changed during the load: then another driver, or none, has this index.
            if self.drivers.get(index) is driver:
                driver.log.note_loaded(partition.log.log_end_offset - 1)
                driver.on_loaded()
        self._to_load.update((index, None) for index in unrecovered if index in self.drivers)

    async def _load(self, driver: D, partition: Partition) -> None:
        await Loader(partition, lambda report: self._new_replay(driver, report), self._clock).load()


def _is_empty(partition: Partition) -> bool:
    """Whether the log is empty. An unreadable log counts as not empty."""
    try:
        return partition.log.log_end_offset == partition.log.log_start_offset
    except StorageFailure:
        return False
