"""Brokers in one process over real sockets, and a controller that a test plays by hand.

Each node has everything that serves and copies partitions; what they know of the cluster is what the test tells them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import trio

from kbroker.clock import SystemClock
from kbroker.config import BrokerConfig, Endpoint
from kbroker.controller.changes import BrokerAdded, BrokerRemoved, Change, PartitionsChanged, TopicAdded, apply
from kbroker.controller.image import Broker, Image, Topic
from kbroker.controller.image import Partition as PartitionState
from kbroker.controller.isr_rules import IsrProposal
from kbroker.coordinator.runtime import GroupCoordinator
from kbroker.group.step import GroupConfig
from kbroker.log.directory import DataDirectory
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import OsFileSystem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.fetcher import ReplicaFetchers
from kbroker.replication.flusher import Flusher
from kbroker.replication.lag_watch import LagWatch
from kbroker.replication.late_recovery import recover_unsound
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.replication.peers import Decision, Peers
from kbroker.server.append_run import AppendRun
from kbroker.server.authorization import AllowAll
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.context import Context
from kbroker.server.deadlines import Deadlines
from kbroker.server.dispatch import Dispatch
from kbroker.server.fetch_session import FetchSessions
from kbroker.server.network import Network
from kbroker.server.quotas import Quotas
from kbroker.server.socket_server import SocketServer
from tests.broker.wire import Client, connect
from tests.log.batches import read_values

PATIENCE_SECONDS = 20.0

_PROPERTIES = {"replica.fetch.backoff.ms": "10", "replica.lag.time.max.ms": "30000"}


async def eventually(condition: Callable[[], bool]) -> None:
    """Bytes pass through the system's sockets: there is no event to wait for."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def _no_bump(partitions: Sequence[tuple[str, int]]) -> None:
    raise AssertionError(f"{partitions} have other replicas")


class Told:
    """A broker's controller: it knows what it was told."""

    def __init__(self) -> None:
        self.image = Image(cluster_id="test")
        self._listeners: list[Callable[[Image, Sequence[Change]], None]] = []

    def add_listener(self, listener: Callable[[Image, Sequence[Change]], None]) -> None:
        self._listeners.append(listener)

    def hear(self, *changes: Change) -> None:
        self.image = apply(self.image, changes)
        for listener in self._listeners:
            listener(self.image, changes)

    def retell(self, topic: str, index: int) -> None:
        state = self.image.partition(topic, index)
        assert state is not None
        self.hear(PartitionsChanged(topic, {index: state}))


class Node:
    def __init__(self, cluster: Cluster, broker_id: int, path: Path, properties: dict[str, str]) -> None:
        self.id = broker_id
        self.port = 0
        self.is_up = False
        self.controller = Told()
        self._cluster = cluster
        self._path = path
        self._config = BrokerConfig.from_properties(_PROPERTIES | properties)
        self.fetch_sessions = FetchSessions(100, lambda: int.from_bytes(os.urandom(4), "big") >> 1)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        clock, config = SystemClock(), self._config
        directory = DataDirectory.open(FileCache(OsFileSystem()), str(self._path), broker_id=self.id)
        self.flusher = flusher = Flusher(clock)
        self.peers = Peers(self.id, clock, config.replica_lag_time_max_ms, self._cluster)
        self.table = PartitionTable(
            [directory],
            broker_id=self.id,
            config=config,
            flusher=flusher,
            clock=clock,
            random_name=lambda: os.urandom(16).hex(),
            peers=self.peers,
        )
        self.table.retell = self.controller.retell
        await self.table.recover()
        self.fetchers = fetchers = ReplicaFetchers(self.table, flusher, config, clock, broker_id=self.id)
        deadlines, append_run = Deadlines(), AppendRun(clock)
        self.groups = GroupCoordinator(
            broker_id=self.id,
            partitions=self.table,
            config=GroupConfig(),
            expiry_interval_ms=600_000,
            clock=clock,
            timers=deadlines,
            new_id=lambda: os.urandom(16).hex(),
            create_topic=trio.lowlevel.checkpoint,
            flush_at_end=append_run.flush_at_end,
        )
        for listener in (self.table.on_image, fetchers.on_image, self.groups.on_image):
            self.controller.add_listener(listener)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    parts: dict[str, Any] = {
                        "broker_id": self.id,
                        "config": config,
                        "clock": clock,
                        "controller": self.controller,
                        "partitions": self.table,
                        "fetch_sessions": self.fetch_sessions,
                        "authorizer": AllowAll(),
                        "deadlines": deadlines,
                        "append_run": append_run,
                        "groups": self.groups,
                        "quotas": Quotas(config, clock, deadlines),
                        "nursery": nursery,
                    }
                    # What these tests do not use is left out.
                    given: dict[str, Any] = {each.name: parts.get(each.name) for each in fields(Context)}
                    server = SocketServer(Network(Dispatch(Context(**given)), ConnectionLimits(), clock))
                    self.port = server.listen("PLAINTEXT", "127.0.0.1", 0).port
                    for work in (deadlines.run, flusher.run, fetchers.run, LagWatch(self.peers, clock).run):
                        nursery.start_soon(work)
                    nursery.start_soon(self.groups.run)
                    await nursery.start(server.run)
                    self.is_up = True
                    task_status.started()
        finally:
            self.is_up = False
            for partition in self.table:
                partition.log.close_files()
            directory.release()
            self._ended.set()

    async def kill(self) -> None:
        """As a crash: connections break, and nothing more is written."""
        self._scope.cancel()
        await self._ended.wait()

    def replica(self, topic: str = "orders", index: int = 0) -> Partition:
        partition = self.table.replica(topic, index)
        assert partition is not None
        return partition

    def values(self, topic: str = "orders") -> list[bytes]:
        return [value for _, value in read_values(self.replica(topic).log)]

    @property
    def end(self) -> int:
        return self.replica().log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.replica().high_watermark


class Cluster:
    """Also the controller's answer to leaders that want to change an in-sync set."""

    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        self.nodes: dict[int, Node] = {}
        self.image = Image(cluster_id="test")
        self.proposed: list[tuple[int, ...]] = []
        self.is_deciding = True
        self.refusal: ErrorCode | None = None
        self._path = path
        self._nursery = nursery

    async def start(self, *broker_ids: int, **properties: object) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in properties.items()}
        for broker_id in broker_ids:
            path = self._path / f"broker-{broker_id}"
            node = self.nodes[broker_id] = Node(self, broker_id, path, texts)
            await self._nursery.start(node.run)
            endpoint = Endpoint("PLAINTEXT", "127.0.0.1", node.port)
            # It hears first of all that is there already.
            node.controller.image = Image(cluster_id="test")
            known = [BrokerAdded(each) for each in self.image.brokers.values() if each.id != broker_id]
            node.controller.hear(*known, *(TopicAdded(topic) for topic in self.image.topics.values()))
            await recover_unsound(node.table, _no_bump)
            self.tell(BrokerAdded(Broker(broker_id, 1, (endpoint,))))

    async def kill(self, broker_id: int) -> None:
        await self.nodes[broker_id].kill()
        self.tell(BrokerRemoved(broker_id))

    def tell(self, *changes: Change, but: Sequence[int] = ()) -> None:
        self.image = apply(self.image, changes)
        for node in self.nodes.values():
            if node.is_up and node.id not in but:
                node.controller.hear(*changes)

    def add_topic(
        self, leader: int, replicas: tuple[int, ...], *, name: str = "orders", isr: tuple[int, ...] = (), **configs: str
    ) -> None:
        state = PartitionState(leader, 0, isr or replicas, replicas, 0)
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        self.tell(TopicAdded(Topic(name, os.urandom(16), (state,), texts)))

    def state(self, topic: str = "orders") -> PartitionState:
        return self.image.topics[topic].partitions[0]

    def change(self, topic: str = "orders", *, but: Sequence[int] = (), **values: Any) -> None:
        """The next state of the partition; a leader begins a new epoch."""
        before = self.state(topic)
        state = before._replace(partition_epoch=before.partition_epoch + 1, **values)
        if "leader" in values:
            state = state._replace(leader_epoch=before.leader_epoch + 1)
        self.tell(PartitionsChanged(topic, {0: state}), but=but)

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        self.proposed.append(proposal.isr)
        if self.is_deciding:
            self._nursery.start_soon(self._decide, proposal, done)

    async def _decide(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        await trio.lowlevel.checkpoint()
        topic = proposal.topic_name
        state = self.state(topic)
        if self.refusal is not None:
            done(self.refusal)
        elif (state.leader_epoch, state.partition_epoch) != (proposal.leader_epoch, proposal.partition_epoch):
            done(ErrorCode.INVALID_UPDATE_VERSION)
        else:
            self.change(topic, isr=proposal.isr, but=(state.leader,))
            done(self.state(topic))

    @asynccontextmanager
    async def client(self, broker_id: int) -> AsyncIterator[Client]:
        async with connect(self.nodes[broker_id].port) as client:
            yield client
