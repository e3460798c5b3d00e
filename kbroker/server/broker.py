"""The composition root: builds every object once, passes it down, and owns the nursery tree.

Start: data directories (locked), metadata, logs (recovered if need be), sockets, registration; only then are
connections accepted. Stop, from the bottom up: listeners, connections with a grace, the background, logs, the lock.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.config import BrokerConfig, Endpoint
from kbroker.controller.changes import TopicAdded
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_tree import open_embedded_tree
from kbroker.controller.topic_rules import NewTopic
from kbroker.controller.tree import Tree
from kbroker.coordinator.runtime import GroupCoordinator
from kbroker.errors import Refusal, UserError
from kbroker.group.step import GroupConfig
from kbroker.log.directory import DataDirectory
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import OsFileSystem
from kbroker.names import CONSUMER_OFFSETS, METADATA_FILE, random_uuid
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.append_run import AppendRun
from kbroker.server.authorization import AllowAll
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.context import Context
from kbroker.server.deadlines import Deadlines
from kbroker.server.descriptors import raise_descriptor_limit
from kbroker.server.dispatch import Dispatch
from kbroker.server.fetch_session import FetchSessions
from kbroker.server.interceptor import Interceptor
from kbroker.server.internal_topics import new_topic
from kbroker.server.maintenance import Maintenance
from kbroker.server.network import Network
from kbroker.server.producer_ids import ProducerIds
from kbroker.server.socket_server import SocketServer

__all__ = ["run_broker"]

logger = logging.getLogger(__name__)

EMBEDDED_BROKER_ID = 1
GRACE_SECONDS = 5.0

Addresses = list[tuple[str, int]]


async def run_broker(
    config: BrokerConfig,
    *,
    data_dir: str | None = None,
    topics: Sequence[tuple[str, int]] = (),
    on_ready: Callable[[Addresses], None] = lambda addresses: None,
    stop: trio.Event,
    interceptor: Interceptor | None = None,
) -> None:
    """Serve until `stop` is set. UserError: it cannot start, and a person can do something about it.

    `topics`: to be there from the start, with their partition counts; -1 stands for num.partitions.
    """
    _refuse_what_is_not_served(config)
    clock = SystemClock()
    broker_id = config.broker_id if config.broker_id >= 0 else EMBEDDED_BROKER_ID
    paths = (data_dir,) if data_dir is not None else config.data_dirs
    files = FileCache(OsFileSystem(), limit=raise_descriptor_limit())
    directories = _open_directories(files, paths, broker_id)
    try:
        flusher = Flusher(clock)
        table = PartitionTable(
            directories,
            broker_id=broker_id,
            config=config,
            flusher=flusher,
            clock=clock,
            random_name=lambda: os.urandom(16).hex(),
        )
        async with _open_tree(config, directories[0]) as tree:
            controller = Controller(tree, broker_id=broker_id, config=config, clock=clock, random_bytes=os.urandom)
            controller.add_listener(table.on_image)
            await controller.load()
            for directory in directories:
                directory.set_cluster_id(controller.image.cluster_id)
            shortened = await table.recover()
            broker = _Broker(broker_id, config, clock, controller, table, flusher)
            await broker.run(topics, shortened, on_ready, stop, interceptor)
    except BaseException:
        for directory in directories:
            directory.release()
        raise
    table.close()


def _refuse_what_is_not_served(config: BrokerConfig) -> None:
    """Better no start than a listener that is less safe, or a cluster that is smaller, than somebody asked for."""
    for endpoint in config.endpoints:
        if endpoint.security_protocol != "PLAINTEXT":
            raise UserError(f"{endpoint} asks for {endpoint.security_protocol}, and only PLAINTEXT is served yet")
    if config.zookeeper_connect:
        raise UserError("zookeeper.connect is set, but clusters are not served yet: remove it to run a single node")


def _open_directories(files: FileCache, paths: Sequence[str], broker_id: int) -> list[DataDirectory]:
    opened: list[DataDirectory] = []
    try:
        opened.extend(
            DataDirectory.open(files, path, broker_id=broker_id, random_below=random.Random().randrange)
            for path in paths
        )
    except BaseException:
        for directory in opened:
            directory.release()
        raise
    return opened


@asynccontextmanager
async def _open_tree(config: BrokerConfig, directory: DataDirectory) -> AsyncIterator[Tree]:
    async with open_embedded_tree(os.path.join(directory.path, METADATA_FILE)) as tree:
        yield tree


class _Broker:
    """What lives from the first socket to the last."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        table: PartitionTable,
        flusher: Flusher,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._controller = controller
        self._table = table
        self._flusher = flusher

    async def run(
        self,
        topics: Sequence[tuple[str, int]],
        shortened: Sequence[tuple[str, int]],
        on_ready: Callable[[Addresses], None],
        stop: trio.Event,
        interceptor: Interceptor | None,
    ) -> None:
        config = self._config
        async with trio.open_nursery() as background:
            context = self._context(background)
            context.interceptor = interceptor
            if interceptor is not None:
                interceptor.attach(context)
            network = Network(Dispatch(context), _limits(config), self._clock)
            server = SocketServer(network)
            try:
                listeners = [server.listen(each.name, each.host, each.port) for each in config.endpoints]
                ports = {listener.name: listener.port for listener in listeners}
                await self._controller.register(_advertised(config, ports))
                if shortened:
                    logger.warning("%d logs were cut at a torn end: new leader epochs", len(shortened))
                    await self._controller.bump_leader_epochs(shortened)
                await self._create_topics(topics)
                background.start_soon(context.deadlines.run)
                background.start_soon(self._flusher.run)
                background.start_soon(Maintenance(self._table, self._flusher, config, self._clock).run)
                background.start_soon(context.groups.run)
                await background.start(server.run)
                on_ready([address for listener in listeners for address in listener.addresses])
                await stop.wait()
                server.stop_accepting()
                self._table.answer_waiters()
                context.groups.stop()
                await server.stop(GRACE_SECONDS)
            finally:
                server.stop_accepting()
                background.cancel_scope.cancel()

    def _context(self, nursery: trio.Nursery) -> Context:
        randomness = random.Random()
        deadlines = Deadlines()
        return Context(
            broker_id=self._broker_id,
            config=self._config,
            clock=self._clock,
            controller=self._controller,
            partitions=self._table,
            producer_ids=ProducerIds(self._controller.allocate_producer_ids),
            fetch_sessions=FetchSessions(
                self._config.max_incremental_fetch_session_cache_slots, lambda: randomness.getrandbits(31)
            ),
            authorizer=AllowAll(),
            deadlines=deadlines,
            append_run=AppendRun(),
            groups=self._groups(deadlines),
            nursery=nursery,
        )

    def _groups(self, deadlines: Deadlines) -> GroupCoordinator:
        config = self._config
        controller = self._controller

        async def create_topic() -> None:
            broker_count = len(controller.image.brokers)
            await controller.create_topics([new_topic(CONSUMER_OFFSETS, config, broker_count=broker_count)])

        groups = GroupCoordinator(
            broker_id=self._broker_id,
            partitions=self._table,
            config=_group_config(config),
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            clock=self._clock,
            timers=deadlines,
            new_id=lambda: str(uuid.UUID(bytes=random_uuid(os.urandom))),
            create_topic=create_topic,
        )
        groups.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(groups.on_image)
        return groups

    async def _create_topics(self, topics: Sequence[tuple[str, int]]) -> None:
        wanted = [NewTopic(name, partitions=count) for name, count in topics]
        outcomes = await self._controller.create_topics(wanted) if wanted else []
        for (name, _), outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise UserError(f"topic {name} cannot be created: {outcome.message}")


def _group_config(config: BrokerConfig) -> GroupConfig:
    # On one node nobody gains from waiting for more members: unless it is asked for, the first rebalance comes at once.
    is_delayed = "group.initial.rebalance.delay.ms" in config.texts
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms if is_delayed else 0,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


def _limits(config: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        max_request_size=config.socket_request_max_bytes,
        queued_max_request_bytes=config.queued_max_request_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        receive_buffer_bytes=config.socket_receive_buffer_bytes,
    )


def _advertised(config: BrokerConfig, ports: dict[str, int]) -> tuple[Endpoint, ...]:
    """What clients are told: a port 0 becomes the one that was bound, no host this machine's name."""
    return tuple(
        each._replace(
            host=each.host if each.host not in ("", "0.0.0.0", "::") else socket.gethostname(),
            port=each.port or ports[each.name],
        )
        for each in config.advertised_endpoints
    )
