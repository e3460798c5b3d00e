"""The group coordinator of a broker: one shard for each partition of `__consumer_offsets` that it leads.

Expires old offsets, removes the offsets of deleted topics, and matches members' regular expressions in the background.
The rules of groups are in the shards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Final, TypeVar

import trio

from kbroker.clock import Clock
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.config_entities import entity_path
from kbroker.controller.image import Image
from kbroker.coordinator.shard_driver import ShardDriver
from kbroker.coordinator.shard_log import Timers
from kbroker.coordinator.shard_table import ShardTable
from kbroker.group.consumer.consumer_records import Assignment
from kbroker.group.consumer.patterns import matching_topics
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.offset_replay import OffsetReplay
from kbroker.group.result import ConsumerTimeouts, GroupCoordinatorConfig, PatternsToMatch
from kbroker.group.shard import GroupShard
from kbroker.log.append_result import AppendResult
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.time_slice import TimeSlice

__all__ = ["GroupCoordinator"]

logger = logging.getLogger(__name__)

_TOPIC_CHANGES: Final = (TopicAdded, TopicRemoved, PartitionsChanged)
_NO_CONFIGS: Final[Mapping[str, str]] = {}
_PART: Final = 50

T = TypeVar("T")


class GroupCoordinator:
    def __init__(
        self,
        *,
        broker_id: int,
        partitions: PartitionTable,
        config: GroupCoordinatorConfig,
        expiry_interval_ms: int,
        clock: Clock,
        timers: Timers,
        new_id: Callable[[], str],
        create_topic: Callable[[], Awaitable[object]],
        flush_at_end: Callable[[Callable[[], None]], None],
        timeouts: Callable[[Mapping[str, str]], ConsumerTimeouts] = lambda configs: ConsumerTimeouts(),
    ) -> None:
        """`new_id` returns the unique part of a new member id.

        `create_topic` creates `__consumer_offsets` and returns when its partitions are open. `flush_at_end` schedules a
        callback after the requests that were read together. `timeouts` reads the timeouts from the configs of a group.
        """
        self._config = config
        self._expiry_interval_ms = expiry_interval_ms
        self._clock = clock
        self._timers = timers
        self._new_id = new_id
        self._timeouts = timeouts
        self.shards = ShardTable(
            CONSUMER_OFFSETS,
            broker_id=broker_id,
            partitions=partitions,
            clock=clock,
            create_topic=create_topic,
            new_driver=self._new_driver,
            new_replay=lambda driver, report: OffsetReplay(driver.shard.hard, report),
        )
        self._deleted_topics: set[str] = set()
        self._flush_at_end = flush_at_end
        self._topics = TopicSource()
        self._to_match: list[tuple[ShardDriver, PatternsToMatch]] = []
        self._match_work = trio.Event()
        self._to_assign: list[tuple[ShardDriver, str]] = []
        self._assign_work = trio.Event()

    def append_marker(
        self, index: int, batch: bytearray, producer_id: int, *, is_commit: bool
    ) -> AppendResult | ErrorCode:
        """Appends a marker to a partition of `__consumer_offsets`.

        The shard must be loaded: otherwise it would miss the end of the transaction.
        """
        driver = self.shards.drivers.get(index)
        if driver is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not driver.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return driver.append_marker(batch, producer_id, is_commit=is_commit)

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        self._topics.update(image, is_changed=any(isinstance(change, _TOPIC_CHANGES) for change in changes))
        self.shards.on_image(image, changes)
        for change in changes:
            if isinstance(change, TopicRemoved) and change.topic.name != CONSUMER_OFFSETS:
                self._deleted_topics.add(change.topic.name)
                self.shards.work.set()

    def _new_driver(self, partition: Partition) -> ShardDriver:
        return ShardDriver(
            partition,
            GroupShard(self._config, self._new_id, self._topics, self._group_timeouts),
            clock=self._clock,
            timers=self._timers,
            flush_at_end=self._flush_at_end,
            match_patterns=self._begin_matching,
            compute_assignment=self._begin_assignment,
        )

    def _group_timeouts(self, group_id: str) -> ConsumerTimeouts:
        configs = self._topics.image.entity_configs
        return self._timeouts(configs.get(entity_path("groups", group_id), _NO_CONFIGS) if configs else _NO_CONFIGS)

    # Background

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire_offsets)
            nursery.start_soon(self._match_patterns)
            nursery.start_soon(self._compute_assignments)
            while True:
                await self.shards.next_work()
                await self._remove_deleted_topics()

    def _begin_matching(self, driver: ShardDriver, patterns: PatternsToMatch) -> None:
        self._to_match.append((driver, patterns))
        self._match_work.set()

    async def _match_patterns(self) -> None:
        """Matches members' regular expressions against all topics, in time slices."""
        while True:
            await self._match_work.wait()
            self._match_work = trio.Event()
            while self._to_match:
                driver, (group_id, regexes, may_see) = self._to_match.pop(0)
                names = list(self._topics.image.topics)
                matched: dict[str, frozenset[str]] = {}
                time_slice = TimeSlice(self._clock)
                for regex in regexes:
                    found: list[str] = []
                    for matches in matching_topics(regex, names):
                        found += [name for name in matches if may_see(name)]
                        await time_slice.checkpoint_if_over()
                    matched[regex] = frozenset(found)
                for some in _in_parts(matched):
                    if not self._is_loaded(driver):
                        break
                    driver.flush()
                    driver.apply(group_id, driver.shard.consumer_patterns_matched(group_id, some, driver.now()))
                    await time_slice.checkpoint_if_over()

    def _begin_assignment(self, driver: ShardDriver, group_id: str) -> None:
        self._to_assign.append((driver, group_id))
        self._assign_work.set()

    async def _compute_assignments(self) -> None:
        """Computes the assignments of groups with many regular expressions, in time slices."""
        while True:
            await self._assign_work.wait()
            self._assign_work = trio.Event()
            while self._to_assign:
                driver, group_id = self._to_assign.pop(0)
                if self._is_loaded(driver) and (begun := driver.shard.begin_assignment(group_id)) is not None:
                    await self._compute_assignment(driver, group_id, *begun)

    async def _compute_assignment(
        self, driver: ShardDriver, group_id: str, epoch: int, steps: Generator[None, None, dict[str, Assignment]]
    ) -> None:
        time_slice = TimeSlice(self._clock)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                parts = _in_parts(end.value)
                break
            await time_slice.checkpoint_if_over()
        for number, targets in enumerate(parts, 1):
            await time_slice.checkpoint_if_over()
            if not self._is_loaded(driver):
                return
            driver.flush()
            done = epoch if number == len(parts) else None
            driver.apply(group_id, driver.shard.consumers_assigned(group_id, targets, done))

    def _is_loaded(self, driver: ShardDriver) -> bool:
        """Whether the shard is still here: it may have been unloaded in an earlier slice."""
        return driver in self.shards.drivers.values()

    async def _expire_offsets(self) -> None:
        while True:
            await trio.sleep(self._expiry_interval_ms / 1000)
            await self._for_each_group(lambda driver, group_id: driver.shard.offsets.expire(group_id, driver.now()))

    async def _remove_deleted_topics(self) -> None:
        if self._deleted_topics:
            topics = frozenset(self._deleted_topics)
            self._deleted_topics.clear()
            await self._for_each_group(lambda driver, group_id: driver.shard.offsets.remove_topics(group_id, topics))

    async def _for_each_group(self, work: Callable[[ShardDriver, str], list[KeyAndValue]]) -> None:
        """Calls `work` for every group and appends the records that it returns, in time slices."""
        time_slice = TimeSlice(self._clock)
        for index, driver in list(self.shards.drivers.items()):
            if not driver.is_loaded:
                continue
            for group_id in driver.shard.group_ids():
                driver.flush()
                records = work(driver, group_id)
                if records and (code := driver.log.append(records)):
                    text = "Could not append tombstones to %s-%d: %s"
                    logger.error(text, CONSUMER_OFFSETS, index, ErrorCode(code).name)
                    break
                # Leadership may have changed while other tasks ran.
                if await time_slice.checkpoint_if_over() and self.shards.drivers.get(index) is not driver:
                    break


def _in_parts(items: Mapping[str, T]) -> list[dict[str, T]]:
    """Divides the items into parts whose records can be written in one slice. At least one part."""
    pairs = list(items.items())
    return [dict(pairs[start : start + _PART]) for start in range(0, len(pairs), _PART)] or [{}]
