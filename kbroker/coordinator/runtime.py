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
from kbroker.controller.image import Image
from kbroker.controller.znodes import entity_path
from kbroker.coordinator.shard_driver import ShardDriver
from kbroker.coordinator.shard_log import Timers
from kbroker.coordinator.shard_table import ShardTable
from kbroker.group.offset_replay import OffsetReplay
from kbroker.group.patterns import matching_topics
from kbroker.group.shard import GroupShard
from kbroker.group.step import ConsumerTimeouts, GroupConfig, KeyAndValue, PatternsToMatch
from kbroker.group.topics import Topics
from kbroker.log.partition_log import AppendResult
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
        self._config = config
        self._expiry_interval_ms = expiry_interval_ms
        self._clock = clock
        self._timers = timers
        self._new_id = new_id
        self._timeouts = timeouts
        self._shards = ShardTable(
            CONSUMER_OFFSETS,
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            create_topic=create_topic,
            new_driver=self._new_driver,
            new_replay=lambda driver, report: OffsetReplay(driver.shard.hard, report),
        )
        self._drivers = self._shards.drivers
        self._deleted_topics: set[str] = set()
        self._flush_at_end = flush_at_end
        self._topics = Topics()
        self._to_match: list[tuple[ShardDriver, PatternsToMatch]] = []
        self._match_work = trio.Event()

    # Who coordinates what

    async def ensure_topic(self) -> None:
        await self._shards.ensure_topic()

    @property
    def has_topic(self) -> bool:
        return self._shards.partition_count > 0

    @property
    def is_loading(self) -> bool:
        return self._shards.is_loading

    def partition_for(self, group_id: str) -> int:
        return self._shards.partition_for(group_id)

    def find(self, group_id: str) -> ShardDriver:
        """The shard of a group, with all earlier commits in it; Refusal if it is not here, or not yet."""
        return self._shards.find(group_id)

    def append_marker(
        self, index: int, batch: bytearray, producer_id: int, *, is_commit: bool
    ) -> AppendResult | ErrorCode:
        """Into a partition of `__consumer_offsets`; not before it is loaded, for its offsets depend on it."""
        driver = self._drivers.get(index)
        if driver is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not driver.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return driver.append_marker(batch, producer_id, is_commit=is_commit)

    def loaded(self) -> Iterable[ShardDriver]:
        """Every shard here, for listings; Refusal while one is not loaded."""
        return self._shards.loaded()

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        self._topics.update(image, is_changed=any(isinstance(each, _OF_TOPICS) for each in changes))
        self._shards.on_image(image, changes)
        for change in changes:
            if isinstance(change, TopicRemoved) and change.topic.name != CONSUMER_OFFSETS:
                self._deleted_topics.add(change.topic.name)
                self._shards.work.set()

    def _new_driver(self, partition: Partition) -> ShardDriver:
        return ShardDriver(
            partition,
            GroupShard(self._config, self._new_id, self._topics, self._timeouts_of),
            clock=self._clock,
            timers=self._timers,
            flush_at_end=self._flush_at_end,
            match_patterns=self._begin_matching,
        )

    def _timeouts_of(self, group_id: str) -> ConsumerTimeouts:
        configs = self._topics.image.entity_configs
        return self._timeouts(configs.get(entity_path("groups", group_id), _NO_CONFIGS) if configs else _NO_CONFIGS)

    def stop(self) -> None:
        """Whoever waits is sent elsewhere, so that the broker can end; what was committed is written first."""
        self._shards.stop()

    # Background

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire_offsets)
            nursery.start_soon(self._match_patterns)
            while True:
                await self._shards.next_work()
                await self._forget_deleted_topics()

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
