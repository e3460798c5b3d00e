"""Fetchers of a broker: one task and one connection for each broker that leads a partition followed here.

Assigns each followed partition to the fetcher of its leader, as the image says. Without followed partitions no task
runs. Never decides which broker leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from kbroker.client.address import Address
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.frames import SocketWatch
from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import NO_LEADER, Image
from kbroker.replication.fetching.leader_fetcher import FetcherStats, LeaderFetcher
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition_table import PartitionTable
from kbroker.replication.replication_quota import follower_quota

__all__ = ["ReplicaFetchers"]


class ReplicaFetchers:
    def __init__(
        self, table: PartitionTable, flusher: Flusher, config: BrokerConfig, clock: Clock, *, broker_id: int
    ) -> None:
        self._table = table
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._broker_id = broker_id
        self.quota = follower_quota(config, clock, broker_id)
        self._image = Image()
        self._leader_of: dict[tuple[str, int], int] = {}
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._stats: dict[int, FetcherStats] = {}  # by leader: a counter must not restart with its fetcher
        self._nursery: trio.Nursery | None = None
        self.on_busy: Callable[[bool], None] = lambda is_busy: None
        """Called with True when the first fetcher starts, and with False when the last one has ended."""
        self.checkpoint: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """Writes the recovery points after truncations: `LogDirs.checkpoint`."""
        self.security: ConnectionSecurity | None = None
        """Needed by the listener between brokers; None if it is PLAINTEXT."""
        self.watch: SocketWatch | None = None
        """Watches the sockets of the fetchers. None: trio does."""

    def __iter__(self) -> Iterator[LeaderFetcher]:
        return iter(self._fetchers.values())

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        """Follows the image. Must be called after `AssignedReplicas.on_image`, which gives partitions their roles."""
        self._image = image
        if not self._table.followers and not self._leader_of:
            return
        for change in changes:
            match change:
                case TopicAdded(topic) | TopicRemoved(topic):
                    for index in range(len(topic.partitions)):
                        self._assign(topic.name, index)
                case PartitionsChanged(name, changed):
                    for index in changed:
                        self._assign(name, index)

    def _assign(self, topic: str, index: int) -> None:
        key = (topic, index)
        partition = self._table.followers.get(key)
        leader = NO_LEADER if partition is None else partition.leader_id
        if leader == self._broker_id:
            leader = NO_LEADER
        previous = self._leader_of.pop(key, NO_LEADER)
        if previous not in (NO_LEADER, leader) and previous in self._fetchers:
            self._fetchers[previous].remove(topic, index)
        if partition is not None and leader != NO_LEADER:
            self._leader_of[key] = leader
            self._fetcher(leader).add(partition)

    def _fetcher(self, leader: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = LeaderFetcher(
                leader,
                self._flusher,
                self._config,
                self._clock,
                self.quota,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                address=self._address,
                checkpoint=lambda: self.checkpoint(),
                security=self.security,
                watch=lambda: self.watch,
            )
            fetcher.stats = self._stats.setdefault(leader, fetcher.stats)
            self.on_busy(True)
            if self._nursery is not None:
                self._nursery.start_soon(self._run_fetcher, fetcher)
        return fetcher

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for fetcher in self._fetchers.values():
                self._nursery.start_soon(self._run_fetcher, fetcher)
            await trio.sleep_forever()

    async def _run_fetcher(self, fetcher: LeaderFetcher) -> None:
        while fetcher.has_partitions:
            await fetcher.run()
        # No await between the check and the removal: a partition added in between would never be fetched.
        del self._fetchers[fetcher.leader_id]
        if not self._fetchers:
            self.on_busy(False)

    def _address(self, broker_id: int) -> Address | None:
        broker = self._image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_endpoint.name)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def _broker_epoch(self) -> int:
        broker = self._image.brokers.get(self._broker_id)
        return -1 if broker is None else broker.epoch
