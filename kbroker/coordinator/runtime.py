"""The group coordinator of a broker: a shard for each partition of `__consumer_offsets` that it leads.

Follows the image, loads what it has come to lead, writes the commits of a run together, and lets old offsets and
those of deleted topics go. What groups do is the shards' business.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import Image, Topic
from kbroker.controller.znodes import entity_path
from kbroker.coordinator.loader import Loader
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shard_driver import ShardDriver, Timers
from kbroker.errors import Refusal
from kbroker.group.patterns import matching_topics
from kbroker.group.shard import GroupShard
from kbroker.group.step import ConsumerTimeouts, GroupConfig, KeyAndValue, PatternsToMatch
from kbroker.group.topics import Topics
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["GroupCoordinator"]

logger = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 0.002
_OF_TOPICS: Final = (TopicAdded, TopicRemoved, PartitionsChanged)
_NO_CONFIGS: Final[Mapping[str, str]] = {}


class GroupCoordinator:
    def __init__(
        self,
        *,
        broker_id: int,
        partitions: PartitionTable,
        config: GroupConfig,
        expiry_interval_ms: int,
        clock: Clock,
        timers: Timers,
        new_id: Callable[[], str],
        create_topic: Callable[[], Awaitable[object]],
        flush_at_end: Callable[[Callable[[], None]], None],
        timeouts: Callable[[Mapping[str, str]], ConsumerTimeouts] = lambda configs: ConsumerTimeouts(),
    ) -> None:
        """`create_topic` makes `__consumer_offsets`, and returns when its partitions are open. `flush_at_end` takes
        what is to be called when the requests that have arrived together are handled. `timeouts`: of a consumer group
        with these configs of its own."""
        self._broker_id = broker_id
        self._table = partitions
        self._config = config
        self._expiry_interval_ms = expiry_interval_ms
        self._clock = clock
        self._timers = timers
        self._new_id = new_id
        self._timeouts = timeouts
        self._create_topic = create_topic
        self._creating = trio.Lock()
        self._drivers: dict[int, ShardDriver] = {}
        self._partition_count = 0
        self._is_running = False
        self._to_load: dict[int, None] = {}
        self._deleted_topics: set[str] = set()
        self._work = trio.Event()
        self._flush_at_end = flush_at_end
        self._topics = Topics()
        self._to_match: list[tuple[ShardDriver, PatternsToMatch]] = []
        self._match_work = trio.Event()

    # Who coordinates what

    async def ensure_topic(self) -> None:
        async with self._creating:
            if not self._partition_count:
                await self._create_topic()

    @property
    def has_topic(self) -> bool:
        return self._partition_count > 0

    @property
    def is_loading(self) -> bool:
        return any(not driver.is_loaded for driver in self._drivers.values())

    def partition_for(self, group_id: str) -> int:
        return partition_for(group_id, self._partition_count)

    def find(self, group_id: str) -> ShardDriver:
        """The shard of a group, with all earlier commits in it; Refusal if it is not here, or not yet."""
        if not self._partition_count:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        driver = self._drivers.get(partition_for(group_id, self._partition_count))
        if driver is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not driver.is_loaded:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return driver

    def loaded(self) -> Iterable[ShardDriver]:
        """Every shard here, for listings; Refusal while one is not loaded."""
        for driver in self._drivers.values():
            if not driver.is_loaded:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            driver.flush()
        return list(self._drivers.values())

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        self._topics.update(image, is_changed=any(isinstance(each, _OF_TOPICS) for each in changes))
        for change in changes:
            match change:
                case TopicAdded(topic) if topic.name == CONSUMER_OFFSETS:
                    self._follow(topic)
                case PartitionsChanged(name, _) if name == CONSUMER_OFFSETS:
                    self._follow(image.topics[name])
                case TopicRemoved(topic) if topic.name == CONSUMER_OFFSETS:
                    self._partition_count = 0
                    for index in list(self._drivers):
                        self._drop(index)
                case TopicRemoved(topic):
                    self._deleted_topics.add(topic.name)
                    self._work.set()

    def _follow(self, topic: Topic) -> None:
        self._partition_count = len(topic.partitions)
        for index, state in enumerate(topic.partitions):
            if state.leader != self._broker_id:
                self._drop(index)
            elif index not in self._drivers:
                partition = self._table.get(topic.name, index)
                if partition is not None:
                    self._take_over(index, partition)

    def _take_over(self, index: int, partition: Partition) -> None:
        driver = self._drivers[index] = ShardDriver(
            partition,
            GroupShard(self._config, self._new_id, self._topics, self._timeouts_of),
            clock=self._clock,
            timers=self._timers,
            flush_at_end=self._flush_at_end,
            match_patterns=self._begin_matching,
        )
        # Before the start nothing may be read from a log, which may want to be recovered first.
        if self._is_running and partition.log.log_end_offset == partition.log.log_start_offset:
            driver.on_loaded()
        else:
            self._to_load[index] = None
            self._work.set()

    def _timeouts_of(self, group_id: str) -> ConsumerTimeouts:
        configs = self._topics.image.entity_configs
        return self._timeouts(configs.get(entity_path("groups", group_id), _NO_CONFIGS) if configs else _NO_CONFIGS)

    def _drop(self, index: int) -> None:
        self._to_load.pop(index, None)
        driver = self._drivers.pop(index, None)
        if driver is not None:
            driver.leave()

    def stop(self) -> None:
        """Whoever waits is sent elsewhere, so that the broker can end; what was committed is written first."""
        for index, driver in list(self._drivers.items()):
            driver.flush()
            self._drop(index)

    # Background

    async def run(self) -> None:
        self._is_running = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire_offsets)
            nursery.start_soon(self._match_patterns)
            while True:
                await self._work.wait()
                self._work = trio.Event()
                await self._load()
                await self._forget_deleted_topics()

    async def _load(self) -> None:
        while self._to_load:
            index = next(iter(self._to_load))
            del self._to_load[index]
            driver = self._drivers.get(index)
            partition = self._table.get(CONSUMER_OFFSETS, index)
            if driver is None or partition is None:
                continue
            await Loader(partition, driver.shard.hard, self._clock).load()
            if self._drivers.get(index) is driver:
                driver.on_loaded()

    def _begin_matching(self, driver: ShardDriver, patterns: PatternsToMatch) -> None:
        self._to_match.append((driver, patterns))
        self._match_work.set()

    async def _match_patterns(self) -> None:
        """Regular expressions over very many topics: a piece at a time, so that requests wait for none of it."""
        while True:
            await self._match_work.wait()
            self._match_work = trio.Event()
            while self._to_match:
                driver, (group_id, regexes, may_see) = self._to_match.pop(0)
                names = list(self._topics.image.topics)
                matched: dict[str, frozenset[str]] = {}
                for regex in regexes:
                    found: list[str] = []
                    for piece in matching_topics(regex, names):
                        found += [each for each in piece if may_see(each)]
                        await trio.lowlevel.checkpoint()
                    matched[regex] = frozenset(found)
                if driver in self._drivers.values():
                    driver.flush()
                    driver.take(group_id, driver.shard.consumer_patterns_matched(group_id, matched, driver.now()))

    async def _expire_offsets(self) -> None:
        while True:
            await trio.sleep(self._expiry_interval_ms / 1000)
            await self._for_each_group(lambda driver, group_id: driver.shard.expire(group_id, driver.now()))

    async def _forget_deleted_topics(self) -> None:
        if self._deleted_topics:
            topics = frozenset(self._deleted_topics)
            self._deleted_topics.clear()
            await self._for_each_group(lambda driver, group_id: driver.shard.forget_topics(group_id, topics))

    async def _for_each_group(self, work: Callable[[ShardDriver, str], list[KeyAndValue]]) -> None:
        """Appends what the work comes up with; in slices, so that requests wait for none of it."""
        slice_end = self._clock.monotonic() + _SLICE_SECONDS
        for index, driver in list(self._drivers.items()):
            if not driver.is_loaded:
                continue
            for group_id in driver.shard.group_ids():
                driver.flush()
                records = work(driver, group_id)
                if records and (code := driver.append(records)):
                    logger.error("%s-%d refuses tombstones: %s", CONSUMER_OFFSETS, index, ErrorCode(code).name)
                    break
                if self._clock.monotonic() >= slice_end:
                    await trio.lowlevel.checkpoint()
                    slice_end = self._clock.monotonic() + _SLICE_SECONDS
                    if self._drivers.get(index) is not driver:
                        break
