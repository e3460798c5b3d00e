"""Brokers in one process over real sockets, and a controller that a test plays by hand.

Each node has everything that serves and copies partitions; the test sends them the changes of the image.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import BrokerAdded, BrokerRemoved, Change, PartitionsChanged, TopicAdded, apply
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.trees.znodes import ProducerIdBlock
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.background_recovery import recover_unsound
from kbroker.replication.fetching.replica_fetchers import ReplicaFetchers
from kbroker.replication.flusher import Flusher
from kbroker.replication.lag_watch import LagWatch
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition import Partition
from kbroker.replication.peers import Decision, Peers
from kbroker.server.context_builder import ContextBuilder
from kbroker.server.requests.dispatch import Dispatch
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.network import Network
from kbroker.server.wire.socket_server import SocketServer
from tests.broker.wire import Client, connect
from tests.log.batches import read_values

PATIENCE_SECONDS = 60.0

_PRODUCER_IDS = 1000
_PROPERTIES = {"replica.fetch.backoff.ms": "10", "replica.lag.time.max.ms": "30000"}


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds, by polling: data on real sockets gives no event to wait for."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def _no_bump(partitions: Sequence[tuple[str, int]]) -> None:
    raise AssertionError(f"{partitions} have other replicas")


class Told:
    """Controller of a broker that has the image the test gave it. `first_id`: the first producer id of the broker."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self.image = Image(cluster_id="test")
        self._listeners: list[Callable[[Image, Sequence[Change]], None]] = []

    def add_listener(self, listener: Callable[[Image, Sequence[Change]], None]) -> None:
        self._listeners.append(listener)

    def hear(self, *changes: Change) -> None:
        self.image = apply(self.image, changes)
        for listener in self._listeners:
            listener(self.image, changes)

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        self._next_id += _PRODUCER_IDS
        return ProducerIdBlock(self._next_id - _PRODUCER_IDS, self._next_id - 1)

    def republish(self, topic: str, index: int) -> None:
        state = self.image.partition(topic, index)
        assert state is not None
        self.hear(PartitionsChanged(topic, {index: state}))


def _random_name() -> str:
    return os.urandom(16).hex()


class Node:
    def __init__(self, cluster: Cluster, broker_id: int, path: Path, properties: dict[str, str]) -> None:
        self.id = broker_id
        self.port = 0
        self.is_up = False
        self.controller = Told(broker_id * 1_000_000)
        self._cluster = cluster
        self._path = path
        self.config = BrokerConfig.from_properties(_PROPERTIES | properties)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        clock, config = self._cluster.clock, self.config
        directory = DataDirectory.open(FileCache(OsFileSystem()), str(self._path), broker_id=self.id)
        self.flusher = flusher = Flusher(clock)
        self.peers = Peers(self.id, clock, config.replica_lag_time_max_ms, self._cluster)
        self.replicas = AssignedReplicas(
            LogDirs([directory], clock=clock, random_name=_random_name),
            broker_id=self.id,
            config=config,
            flusher=flusher,
            clock=clock,
            random_name=_random_name,
            peers=self.peers,
        )
        self.table = self.replicas.table
        self.replicas.republish = self.controller.republish
        await self.replicas.recover()
        self.fetchers = fetchers = ReplicaFetchers(self.table, flusher, config, clock, broker_id=self.id)
        fetchers.checkpoint = self.replicas.log_dirs.checkpoint
        for listener in (self.replicas.on_image, fetchers.on_image):
            self.controller.add_listener(listener)
        builder = ContextBuilder(self.id, config, SystemClock(), cast(Any, self.controller), None, self.replicas)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self.context = context = builder.build(nursery)
                    self.groups, self.transactions = context.groups, context.transactions
                    server = SocketServer(Network(Dispatch(context), ConnectionLimits(), SystemClock()))
                    self.port = server.listen("PLAINTEXT", host="127.0.0.1", port=0).port
                    works = (context.deadlines.run, flusher.run, LagWatch(self.peers, clock).run)
                    for work in (*works, self.groups.run, self.transactions.run):
                        nursery.start_soon(work)
                    await nursery.start(server.run)
                    fetchers.watch = server.socket_watch
                    nursery.start_soon(fetchers.run)
                    task_status.started()
        finally:
            self.is_up = False
            for partition in self.table:
                partition.log_handle.close_files()
            directory.release()
            self._ended.set()

    async def kill(self) -> None:
        """Stops the broker like a crash: connections break, and nothing more is written."""
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
    """Brokers and their controller, which also decides on ISR proposals."""

    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        self.nodes: dict[int, Node] = {}
        self.image = Image(cluster_id="test")
        self.proposed: list[tuple[int, ...]] = []
        self.is_deciding = True
        self.clock: Clock = SystemClock()
        """Clock of the replicas and of their throttles."""
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
            # Existing brokers and topics first: a change that arrived before them would name an unknown topic.
            node.is_up = True
            known = [BrokerAdded(broker) for broker in self.image.brokers.values() if broker.id != broker_id]
            node.controller.hear(*known, *(TopicAdded(topic) for topic in self.image.topics.values()))
            await recover_unsound(node.replicas, _no_bump)
            self.tell(BrokerAdded(BrokerRegistration(broker_id, 1, (endpoint,), texts.get("broker.rack"))))

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
        self.tell(TopicAdded(TopicImage(name, os.urandom(16), (state,), texts)))

    def state(self, topic: str = "orders") -> PartitionState:
        return self.image.topics[topic].partitions[0]

    def change(self, topic: str = "orders", *, but: Sequence[int] = (), **values: Any) -> None:
        """Publishes the next state of the partition; a given leader starts a new epoch."""
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
