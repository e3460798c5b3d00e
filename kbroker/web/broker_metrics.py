"""Collects a broker's metrics at each scrape: from logs, metadata image, connections and dispatch counters.

Never counts records one by one. Loops over all partitions yield to the event loop every 2 ms, so that requests are not
delayed; values in one response may therefore be a few milliseconds apart.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from kbroker.clock import Clock
from kbroker.controller.image import NO_LEADER
from kbroker.controller.rules.reassignment import is_reassigning
from kbroker.errors import Refusal, StorageFailure
from kbroker.group.classic.states import GroupState
from kbroker.log.open_log import OpenLog
from kbroker.replication.cleaning.log_cleaner import LogCleaner
from kbroker.replication.fetch_waiters import FetchWaiter
from kbroker.replication.partition import Partition
from kbroker.server.context import Context
from kbroker.server.status import BrokerStatus
from kbroker.server.wire.network import Network
from kbroker.time_slice import TimeSlice
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples
from kbroker.web.log_sizes import LogSize, LogSizes
from kbroker.web.process_metrics import read_process
from kbroker.web.quota_metrics import read_quotas
from kbroker.web.replication_metrics import read_replication
from kbroker.web.request_metrics import read_loop, read_requests
from kbroker.web.topic_totals import TopicTotals, Traffic
from kbroker.web.zookeeper_metrics import read_zookeeper

if TYPE_CHECKING:
    from kbroker.server.authentication.sasl_listener import SaslListener
    from kbroker.server.listener_tls import ReloadableTls

__all__ = ["BrokerMetrics"]


_GROUP_STATES: Final = {
    table.GROUPS_PREPARING: GroupState.PREPARING_REBALANCE.value,
    table.GROUPS_COMPLETING: GroupState.COMPLETING_REBALANCE.value,
    table.GROUPS_STABLE: GroupState.STABLE.value,
    table.GROUPS_EMPTY: GroupState.EMPTY.value,
    table.GROUPS_DEAD: GroupState.DEAD.value,
}


class _DiskSpace(NamedTuple):
    total_bytes: int
    free_bytes: int


class BrokerMetrics:
    def __init__(self, status: BrokerStatus, clock: Clock) -> None:
        self._status = status
        self._clock = clock
        self._totals = TopicTotals()
        self._log_sizes = LogSizes()
        self._scrape_lock = trio.Lock()
        self._time_slice = TimeSlice(clock)

    async def read(self) -> bytes:
        """Returns the body of /metrics. Handles one scrape at a time: scrapes share totals and time slice."""
        async with self._scrape_lock:
            samples = Samples(table.METRICS)
            status = self._status
            samples.add(table.BROKER_STATE, status.state)
            if status.context is not None and status.network is not None and status.dispatch is not None:
                self._time_slice = TimeSlice(self._clock)
                await read_requests(samples, status.dispatch, self._time_slice)
                read_loop(samples, status.network)
                samples.add(table.BUGS, status.dispatch.bugs + status.network.reports.server_errors)
                _read_network(samples, status.network, {endpoint.name for endpoint in status.context.config.endpoints})
                _read_logins(samples, status.sasl_listeners)
                _read_tls(samples, status.tls_listeners)
                await self._read_cluster(samples, status.context)
                await self._read_partitions(samples, status.context)
                await read_replication(samples, status, self._time_slice)
                read_quotas(samples, status.context.controller.image)
                await self._read_groups(samples, status.context)
                await self._read_directories(samples, status.context)
                if status.flusher is not None:
                    samples.add_histogram(table.FLUSH_TIME, status.flusher.flush_times)
                if status.zookeeper_session is not None:
                    read_zookeeper(samples, status.zookeeper_session)
                if status.cleaner is not None:
                    _read_cleaner(samples, status.cleaner, status.context)
            read_process(samples)
            return samples.encode()

    async def _read_cluster(self, samples: Samples, context: Context) -> None:
        image, broker_id = context.controller.image, context.broker_id
        samples.add(table.INFO, 1, self._status.version, image.cluster_id, broker_id)
        partitions = offline = imbalanced = led = under_replicated = reassigning = 0
        for topic in image.topics.values():
            for state in topic.partitions:
                offline += state.leader == NO_LEADER
                imbalanced += state.leader != state.replicas[0]
                if state.leader == broker_id:
                    led += 1
                    under_replicated += len(state.isr) < len(state.replicas)
                    reassigning += is_reassigning(state)
            partitions += len(topic.partitions)
            await self._time_slice.checkpoint_if_over()
        samples.add(table.CONTROLLERS, int(image.controller_id == broker_id))
        samples.add(table.ACTIVE_BROKERS, len(image.brokers))
        samples.add(table.OFFLINE, offline)
        samples.add(table.PREFERRED_IMBALANCE, imbalanced)
        samples.add(table.GLOBAL_TOPICS, len(image.topics))
        samples.add(table.GLOBAL_PARTITIONS, partitions)
        samples.add(table.LEADERS, led)
        samples.add(table.UNDER_REPLICATED, under_replicated)
        samples.add(table.REASSIGNING, reassigning)
        samples.add(table.FETCH_SESSIONS, len(context.fetch_sessions))

    async def _read_partitions(self, samples: Samples, context: Context) -> None:
        partition_table = context.partitions
        sizes = await self._log_sizes.measure_unloaded(partition_table, context.log_dirs.filesystem)
        traffic: dict[bytes, Traffic] = {}
        waiting: set[FetchWaiter] = set()
        count = unreadable = under_min_isr = at_min_isr = 0
        for partition in list(partition_table):
            await self._time_slice.checkpoint_if_over()
            if partition_table.replica(partition.topic, partition.index) is not partition:
                continue  # deleted while this loop had yielded
            count += 1
            waiting.update(partition.fetch_waiters)
            under_min_isr += partition.is_leader and partition.insync_replicas < partition.min_insync_replicas
            at_min_isr += partition.is_leader and partition.insync_replicas == partition.min_insync_replicas
            traffic.setdefault(partition.topic_id, Traffic(partition.topic)).add(partition)
            size = _log_size(partition.log_handle.opened, sizes.get(partition))
            if size is None:
                unreadable += 1
            else:
                _add_log_samples(samples, partition, size)
        samples.add(table.PARTITIONS, count)
        samples.add(table.OFFLINE_REPLICAS, unreadable)
        samples.add(table.UNDER_MIN_ISR, under_min_isr)
        samples.add(table.AT_MIN_ISR, at_min_isr)
        samples.add(table.WAITING, len(waiting), "Fetch")
        self._totals.update(traffic)
        totals = self._totals.sum()
        samples.add(table.REPLICATION_BYTES_IN, totals.replication_bytes_in)
        samples.add(table.REPLICATION_BYTES_OUT, totals.replication_bytes_out)
        samples.add(table.REASSIGNMENT_BYTES_IN, totals.reassignment_bytes_in)
        samples.add(table.REASSIGNMENT_BYTES_OUT, totals.reassignment_bytes_out)
        for topic_traffic in (*traffic.values(), totals):
            labels = (topic_traffic.topic,) if topic_traffic.topic else ()
            samples.add(table.MESSAGES_IN, topic_traffic.messages_in, *labels)
            samples.add(table.BYTES_IN, topic_traffic.bytes_in, *labels)
            samples.add(table.BYTES_OUT, topic_traffic.bytes_out, *labels)
            samples.add(table.BYTES_REJECTED, topic_traffic.bytes_rejected, *labels)
            if topic_traffic.unparsable and topic_traffic.topic:
                samples.add(table.UNPARSABLE, topic_traffic.unparsable, topic_traffic.topic)
            await self._time_slice.checkpoint_if_over()

    async def _read_groups(self, samples: Samples, context: Context) -> None:
        states: Counter[str] = Counter()
        offsets = 0
        try:
            drivers = list(context.groups.shards.loaded())
        except Refusal:
            return  # still loading: report no value rather than one that is too small
        for driver in drivers:
            states.update(group.state.value for group in driver.shard.list_groups())
            offsets += sum(map(len, driver.shard.hard.offsets.values()))
            await self._time_slice.checkpoint_if_over()
        samples.add(table.GROUPS, states.total())
        samples.add(table.OFFSETS, offsets)
        for state in sorted({*states, *_GROUP_STATES.values()}):
            samples.add(table.GROUPS_BY_STATE, states[state], state)
        for metric, state in _GROUP_STATES.items():
            samples.add(metric, states[state])

    async def _read_directories(self, samples: Samples, context: Context) -> None:
        gates = context.log_dirs.gates
        samples.add(table.DIRECTORIES_OFFLINE, sum(gate.is_offline for gate in gates.values()))
        for path, gate in gates.items():
            samples.add(table.DIRECTORY_OFFLINE, int(gate.is_offline), path)
            samples.add(table.DIRECTORY_WRITABLE, int(not gate.is_full and not gate.is_offline), path)
            space = None if gate.is_offline else await trio.to_thread.run_sync(_disk_space, path)
            if space is not None:
                samples.add(table.DIRECTORY_FREE, space.free_bytes, path)
                samples.add(table.DIRECTORY_TOTAL, space.total_bytes, path)


def _read_network(samples: Samples, network: Network, listener_names: Iterable[str]) -> None:
    connections = Counter(connection.listener_name for connection in network.connections)
    for name in sorted(listener_names):
        samples.add(table.CONNECTIONS, connections[name], name)
    samples.add(table.MEMORY_USED, network.budget.used)
    samples.add(table.MEMORY_AVAILABLE, max(network.budget.limit - network.budget.used, 0))
    samples.add(table.PEER_ERRORS, network.reports.peer_errors)


def _read_logins(samples: Samples, listeners: Mapping[str, SaslListener]) -> None:
    for name, listener in sorted(listeners.items()):
        samples.add(table.LOGINS, listener.successes, name)
        samples.add(table.FAILED_LOGINS, listener.failures, name)
        samples.add(table.RENEWED_LOGINS, listener.reauthentications, name)
        samples.add(table.EXPIRED_SESSIONS, listener.expired_sessions, name)


def _read_tls(samples: Samples, listeners: Mapping[str, ReloadableTls]) -> None:
    for name, tls in sorted(listeners.items()):
        samples.add(table.TLS_HANDSHAKES, tls.handshakes, name)
        samples.add(table.TLS_FAILURES, tls.failed_handshakes, name)
        samples.add(table.TLS_EXPIRY, int(tls.certificate.not_after.timestamp()), name)


def _read_cleaner(samples: Samples, cleaner: LogCleaner, context: Context) -> None:
    stats = cleaner.stats
    samples.add(table.MAX_DIRTY, round(stats.max_dirty_percent, 1))
    samples.add(table.LAST_RUN, round(1000 * cleaner.seconds_since_last_run))
    samples.add(table.RECOPY, round(stats.recopy_percent, 1))
    samples.add(table.CLEAN_TIME, round(stats.clean_seconds, 3))
    samples.add(table.CLEANER_BUFFER, round(stats.buffer_percent, 1))
    samples.add(table.COMPACTION_DELAY, round(stats.max_delay_seconds))
    samples.add(table.CLEANER_RUNS, stats.runs)
    samples.add(table.CLEANER_READ, stats.read_bytes)
    samples.add(table.CLEANER_WRITTEN, stats.written_bytes)
    samples.add(table.CLEANER_SECONDS, round(stats.busy_seconds, 3))
    uncleanable, dirty_bytes = Counter[str](), Counter[str]()
    for partition, size in cleaner.uncleanable():
        path = context.log_dirs.directory_of(partition).path
        uncleanable[path] += 1
        dirty_bytes[path] += size
    for path in context.log_dirs.gates:
        samples.add(table.UNCLEANABLE, uncleanable[path], path)
        samples.add(table.UNCLEANABLE_BYTES, dirty_bytes[path], path)


def _log_size(log: OpenLog | None, unloaded: LogSize | None) -> LogSize | None:
    """Returns the size of a log; None if its files cannot be read."""
    if log is None:
        return unloaded
    try:
        return LogSize(log.size_bytes, len(log.segment_base_offsets))
    except StorageFailure:
        return None


def _add_log_samples(samples: Samples, partition: Partition, size: LogSize) -> None:
    start, end = partition.log_handle.known_offsets
    # Formatted here and not by Samples.add, for speed: topic names contain no characters to escape.
    labels = f'{{topic="{partition.topic}",partition="{partition.index}"}}'
    samples.append(table.LOG_SIZE, f"{table.LOG_SIZE.name}{labels} {size.bytes}")
    samples.append(table.LOG_END, f"{table.LOG_END.name}{labels} {end}")
    samples.append(table.LOG_START, f"{table.LOG_START.name}{labels} {start}")
    samples.append(table.LOG_SEGMENTS, f"{table.LOG_SEGMENTS.name}{labels} {size.segments}")


def _disk_space(path: str) -> _DiskSpace | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return _DiskSpace(usage.total, usage.free)
