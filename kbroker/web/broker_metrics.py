"""Reads a broker's metrics when somebody asks for them: from logs, image, connections and the counts of dispatch.

Nothing is counted for each record. What goes over all partitions is done in slices of about 2 ms, so that requests wait
for none of it; the numbers of one page may therefore be some milliseconds apart.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.controller.image import NO_LEADER
from kbroker.errors import Refusal, StorageFailure
from kbroker.group.states import GroupState
from kbroker.log.partition_log import PartitionLog
from kbroker.replication.log_cleaner import LogCleaner
from kbroker.replication.partition import FetchWaiter, Partition
from kbroker.server.context import Context
from kbroker.server.network import Network
from kbroker.server.vitals import Vitals
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples
from kbroker.web.log_sizes import LogSize, LogSizes
from kbroker.web.process_metrics import read_process
from kbroker.web.topic_totals import TopicTotals, Traffic

__all__ = ["BrokerMetrics"]

_SLICE_SECONDS: Final = 0.002

_GROUP_STATES: Final = {
    table.GROUPS_PREPARING: GroupState.PREPARING_REBALANCE.value,
    table.GROUPS_COMPLETING: GroupState.COMPLETING_REBALANCE.value,
    table.GROUPS_STABLE: GroupState.STABLE.value,
    table.GROUPS_EMPTY: GroupState.EMPTY.value,
}


class _Space(NamedTuple):
    total: int
    free: int


class BrokerMetrics:
    def __init__(self, vitals: Vitals, clock: Clock) -> None:
        self._vitals = vitals
        self._clock = clock
        self._totals = TopicTotals()
        self._log_sizes = LogSizes()
        self._turn = trio.Lock()
        self._slice_end = 0.0

    async def read(self) -> bytes:
        """The page. One at a time: whoever asks meanwhile waits."""
        async with self._turn:
            samples = Samples(table.METRICS)
            vitals = self._vitals
            samples.add(table.BROKER_STATE, vitals.state)
            if vitals.context is not None and vitals.network is not None and vitals.dispatch is not None:
                self._slice_end = self._clock.monotonic() + _SLICE_SECONDS
                for (name, version), (count,) in sorted(vitals.dispatch.counts.items()):
                    samples.add(table.REQUESTS, count, name, version)
                samples.add(table.BUGS, vitals.dispatch.bugs + vitals.network.server_errors)
                _read_network(samples, vitals.network, {each.name for each in vitals.context.config.endpoints})
                await self._read_cluster(samples, vitals.context)
                await self._read_partitions(samples, vitals.context)
                await self._read_groups(samples, vitals.context)
                await self._read_directories(samples, vitals.context)
                if vitals.cleaner is not None:
                    _read_cleaner(samples, vitals.cleaner, vitals.context)
            read_process(samples)
            return samples.encode()

    async def _pause(self) -> None:
        """Lets others have the loop if this slice is over."""
        if self._clock.monotonic() >= self._slice_end:
            await trio.lowlevel.checkpoint()
            self._slice_end = self._clock.monotonic() + _SLICE_SECONDS

    async def _read_cluster(self, samples: Samples, context: Context) -> None:
        image, broker_id = context.controller.image, context.broker_id
        samples.add(table.INFO, 1, self._vitals.version, image.cluster_id, broker_id)
        partitions = leaderless = led = lacking = 0
        for topic in image.topics.values():
            for state in topic.partitions:
                leaderless += state.leader == NO_LEADER
                if state.leader == broker_id:
                    led += 1
                    lacking += len(state.isr) < len(state.replicas)
            partitions += len(topic.partitions)
            await self._pause()
        samples.add(table.CONTROLLERS, int(image.controller_id == broker_id))
        samples.add(table.OFFLINE, leaderless)
        samples.add(table.GLOBAL_TOPICS, len(image.topics))
        samples.add(table.GLOBAL_PARTITIONS, partitions)
        samples.add(table.LEADERS, led)
        samples.add(table.UNDER_REPLICATED, lacking)
        samples.add(table.FETCH_SESSIONS, len(context.fetch_sessions))

    async def _read_partitions(self, samples: Samples, context: Context) -> None:
        held = context.partitions
        sizes = await self._log_sizes.measure_unread(held)
        traffic: dict[bytes, Traffic] = {}
        waiting: set[FetchWaiter] = set()
        count = unreadable = under_min_isr = 0
        for partition in list(held):
            await self._pause()
            if held.replica(partition.topic, partition.index) is not partition:
                continue  # deleted while others had their slice
            count += 1
            waiting |= partition.fetch_waiters
            under_min_isr += partition.is_leader and partition.insync_replicas < partition.config.min_insync_replicas
            traffic.setdefault(partition.topic_id, Traffic(partition.topic)).add(partition)
            size = _size_of(partition.log, sizes.get(partition))
            if size is None:
                unreadable += 1
            else:
                _read_log(samples, partition, size)
        samples.add(table.PARTITIONS, count)
        samples.add(table.OFFLINE_REPLICAS, unreadable)
        samples.add(table.UNDER_MIN_ISR, under_min_isr)
        samples.add(table.WAITING, len(waiting), "Fetch")
        self._totals.take(traffic)
        for each in (*traffic.values(), self._totals.sum()):
            labels = (each.topic,) if each.topic else ()
            samples.add(table.MESSAGES_IN, each.messages_in, *labels)
            samples.add(table.BYTES_IN, each.bytes_in, *labels)
            samples.add(table.BYTES_OUT, each.bytes_out, *labels)
            if each.unparsable and each.topic:
                samples.add(table.UNPARSABLE, each.unparsable, each.topic)
            await self._pause()

    async def _read_groups(self, samples: Samples, context: Context) -> None:
        states: Counter[str] = Counter()
        offsets = 0
        try:
            drivers = list(context.groups.loaded())
        except Refusal:
            return  # still loading: no number is better than one that is too small
        for driver in drivers:
            states.update(each.state.value for each in driver.shard.list_groups())
            offsets += sum(map(len, driver.shard.hard.offsets.values()))
            await self._pause()
        samples.add(table.GROUPS, states.total())
        samples.add(table.OFFSETS, offsets)
        for state, count in sorted(states.items()):
            samples.add(table.GROUPS_BY_STATE, count, state)
        for metric, state in _GROUP_STATES.items():
            samples.add(metric, states[state])

    async def _read_directories(self, samples: Samples, context: Context) -> None:
        gates = context.partitions.gates
        samples.add(table.DIRECTORIES_OFFLINE, sum(gate.is_offline for gate in gates.values()))
        for path, gate in gates.items():
            samples.add(table.DIRECTORY_OFFLINE, int(gate.is_offline), path)
            samples.add(table.DIRECTORY_WRITABLE, int(not gate.is_full and not gate.is_offline), path)
            space = None if gate.is_offline else await trio.to_thread.run_sync(_space, path)
            if space is not None:
                samples.add(table.DIRECTORY_FREE, space.free, path)
                samples.add(table.DIRECTORY_TOTAL, space.total, path)


def _read_network(samples: Samples, network: Network, listener_names: Iterable[str]) -> None:
    connections = Counter(each.listener_name for each in network.connections)
    for name in sorted(listener_names):
        samples.add(table.CONNECTIONS, connections[name], name)
    samples.add(table.MEMORY_USED, network.budget.used)
    samples.add(table.MEMORY_AVAILABLE, max(network.budget.limit - network.budget.used, 0))
    samples.add(table.PEER_ERRORS, network.peer_errors)


def _read_cleaner(samples: Samples, cleaner: LogCleaner, context: Context) -> None:
    stats = cleaner.stats
    samples.add(table.MAX_DIRTY, round(stats.max_dirty_percent, 1))
    samples.add(table.LAST_RUN, round(1000 * cleaner.seconds_since_last_run))
    samples.add(table.RECOPY, round(stats.recopy_percent, 1))
    samples.add(table.CLEAN_TIME, round(stats.clean_seconds, 3))
    samples.add(table.CLEANER_BUFFER, round(stats.buffer_percent, 1))
    samples.add(table.COMPACTION_DELAY, round(stats.max_delay_seconds))
    uncleanable, dirty_bytes = Counter[str](), Counter[str]()
    for partition, size in cleaner.uncleanable():
        path = context.partitions.directory_of(partition).path
        uncleanable[path] += 1
        dirty_bytes[path] += size
    for path in context.partitions.gates:
        samples.add(table.UNCLEANABLE, uncleanable[path], path)
        samples.add(table.UNCLEANABLE_BYTES, dirty_bytes[path], path)


def _size_of(log: PartitionLog, unread: LogSize | None) -> LogSize | None:
    """None: its files cannot be looked at."""
    if not log.is_loaded:
        return unread
    try:
        return LogSize(log.size_bytes, len(log.segment_base_offsets))
    except StorageFailure:
        return None


def _read_log(samples: Samples, partition: Partition, size: LogSize) -> None:
    start, end = partition.log.known_offsets
    labels = f'{{topic="{partition.topic}",partition="{partition.index}"}}'  # a topic's name needs no escapes
    samples.append(table.LOG_SIZE, f"{table.LOG_SIZE.name}{labels} {size.bytes}")
    samples.append(table.LOG_END, f"{table.LOG_END.name}{labels} {end}")
    samples.append(table.LOG_START, f"{table.LOG_START.name}{labels} {start}")
    samples.append(table.LOG_SEGMENTS, f"{table.LOG_SEGMENTS.name}{labels} {size.segments}")


def _space(path: str) -> _Space | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return _Space(usage.total, usage.free)
