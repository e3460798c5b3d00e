"""The shards of one internal topic: one for each of its partitions that this broker leads.

Follows the image, loads what it has come to lead, and knows which shard a key belongs to. What shards do is theirs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import Image, Topic
from kbroker.coordinator.loader import BatchReplay, Loader
from kbroker.coordinator.placement import partition_for
from kbroker.errors import RecoveryNeeded, Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["Driver", "ShardTable"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1


class Driver(Protocol):
    """One shard over its partition."""

    is_loaded: bool

    def note_loaded(self, last_offset: int) -> None:
        """What is answered from here on may be based on records up to there, which may not be committed yet."""
        ...

    def on_loaded(self) -> None: ...

    def flush(self) -> None:
        """Write what waits to be written with others."""
        ...

    def leave(self) -> None:
        """Somebody else coordinates from here on."""
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
        """`create_topic` makes the topic, and returns when its partitions are open."""
        self._topic = topic
        self._broker_id = broker_id
        self._table = partitions
        self._clock = clock
        self._create_topic = create_topic
        self._new_driver = new_driver
        self._new_replay = new_replay
        self._creating = trio.Lock()
        self.drivers: dict[int, D] = {}
        self.partition_count = 0
        self._is_running = False
        self._to_load: dict[int, None] = {}
        self.work = trio.Event()
        """Set when there is something to load; others may set it for work of their own."""

    async def ensure_topic(self) -> None:
        async with self._creating:
            if not self.partition_count:
                await self._create_topic()

    def partition_for(self, key: str) -> int:
        return partition_for(key, self.partition_count)

    @property
    def is_loading(self) -> bool:
        return any(not driver.is_loaded for driver in self.drivers.values())

    def find(self, key: str) -> D:
        """The shard of a key; Refusal if it is not here, or not yet."""
        if not self.partition_count:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        driver = self.drivers.get(partition_for(key, self.partition_count))
        if driver is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not driver.is_loaded:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return driver

    def loaded(self) -> Iterable[D]:
        """Every shard here, for listings; Refusal while one is not loaded."""
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
                    self.partition_count = 0
                    for index in list(self.drivers):
                        self._drop(index)

    def _follow(self, topic: Topic) -> None:
        self.partition_count = len(topic.partitions)
        for index, state in enumerate(topic.partitions):
            if state.leader != self._broker_id:
                self._drop(index)
            elif index not in self.drivers:
                partition = self._table.get(topic.name, index)
                if partition is not None:
                    self._take_over(index, partition)

    def _take_over(self, index: int, partition: Partition) -> None:
        driver = self.drivers[index] = self._new_driver(partition)
        # Before the start nothing may be read from a log, which may want to be recovered first.
        if self._is_running and _is_empty(partition):
            driver.on_loaded()
        else:
            self._to_load[index] = None
            self.work.set()

    def _drop(self, index: int) -> None:
        self._to_load.pop(index, None)
        driver = self.drivers.pop(index, None)
        if driver is not None:
            driver.leave()

    def stop(self) -> None:
        """Whoever waits is sent elsewhere, so that the broker can end; what was committed is written first."""
        for index, driver in list(self.drivers.items()):
            driver.flush()
            self._drop(index)

    async def next_work(self) -> None:
        """Waits for some, and loads what is to be loaded."""
        self._is_running = True
        with trio.move_on_after(_RETRY_SECONDS if self._to_load else math.inf):
            await self.work.wait()
        self.work = trio.Event()
        unsound: list[int] = []
        while self._to_load:
            index = next(iter(self._to_load))
            del self._to_load[index]
            driver = self.drivers.get(index)
            partition = self._table.get(self._topic, index)
            if driver is None or partition is None:
                continue
            try:
                await self._load(driver, partition)
            except RecoveryNeeded:
                unsound.append(index)  # is seen to, and tried again
                continue
            except StorageFailure as failure:
                logger.error("%s-%d cannot be read, and nobody coordinates it here: %s", self._topic, index, failure)
                self._drop(index)
            if self.drivers.get(index) is driver:
                driver.note_loaded(partition.log.log_end_offset - 1)
                driver.on_loaded()
        self._to_load.update((index, None) for index in unsound if index in self.drivers)

    async def _load(self, driver: D, partition: Partition) -> None:
        await Loader(partition, lambda report: self._new_replay(driver, report), self._clock).load()


def _is_empty(partition: Partition) -> bool:
    """So that there is nothing to load. One that cannot be read is no such."""
    try:
        return partition.log.log_end_offset == partition.log.log_start_offset
    except StorageFailure:
        return False
