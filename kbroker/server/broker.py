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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.config import BrokerConfig, Endpoint, parse_host_counts
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicAdded
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_tree import open_embedded_tree
from kbroker.controller.image import Image
from kbroker.controller.topic_rules import NewTopic
from kbroker.controller.tree import Tree
from kbroker.coordinator.markers import Markers
from kbroker.coordinator.runtime import GroupCoordinator
from kbroker.coordinator.transactions import TransactionConfig, TransactionCoordinator
from kbroker.errors import Refusal, StorageFailure, UserError
from kbroker.group.assignors import known_assignors
from kbroker.group.step import ConsumerTimeouts, GroupConfig
from kbroker.group_config import consumer_timeouts
from kbroker.log.directory import DataDirectory, normalized
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import OsFileSystem
from kbroker.names import CONSUMER_OFFSETS, METADATA_FILE, TRANSACTION_STATE, random_uuid
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.flusher import Flusher
from kbroker.replication.isr_proposer import IsrProposer
from kbroker.replication.lag_watch import LagWatch
from kbroker.replication.log_cleaner import LogCleaner
from kbroker.replication.log_dir_mover import LogDirMover
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.append_run import AppendRun
from kbroker.server.authorization import AllowAll
from kbroker.server.client_quotas import address_rates
from kbroker.server.cluster import find_broker_id, new_fetchers, new_member, open_shared_tree
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.context import Context
from kbroker.server.deadlines import Deadlines
from kbroker.server.descriptors import raise_descriptor_limit
from kbroker.server.dispatch import Dispatch
from kbroker.server.event_log import EventLog
from kbroker.server.fetch_session import FetchSessions
from kbroker.server.interceptor import Interceptor
from kbroker.server.internal_topics import new_topic
from kbroker.server.listener import Listener
from kbroker.server.maintenance import Maintenance
from kbroker.server.network import Network
from kbroker.server.producer_ids import ProducerIds
from kbroker.server.quotas import Quotas
from kbroker.server.socket_server import SocketServer
from kbroker.server.topic_creation import create_topics
from kbroker.server.vitals import BrokerState, Vitals

if TYPE_CHECKING:
    from kbroker.controller.cluster_member import ClusterMember
    from kbroker.replication.fetcher import ReplicaFetchers

__all__ = ["run_broker"]

logger = logging.getLogger(__name__)

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
    vitals: Vitals | None = None,
) -> None:
    """Serve until `stop` is set. UserError: it cannot start, and a person can do something about it.

    `topics`: to be there from the start, with their partition counts; -1 stands for num.partitions. `vitals` follows
    how the broker is.
    """
    _refuse_what_is_not_served(config)
    clock = SystemClock()
    began = clock.monotonic()
    vitals = Vitals() if vitals is None else vitals
    vitals.state = BrokerState.STARTING
    paths = (data_dir,) if data_dir is not None else config.data_dirs
    files = FileCache(OsFileSystem(), limit=raise_descriptor_limit())
    try:
        async with AsyncExitStack() as stack:
            shared = await stack.enter_async_context(open_shared_tree(config)) if config.zookeeper_connect else None
            broker_id = await find_broker_id(config, shared, paths)
            flusher = Flusher(clock)
            table = stack.enter_context(_open_table(files, paths, broker_id, config, flusher, clock))
            if shared is None:
                tree = await stack.enter_async_context(_open_own_tree(table.directories[0]))
            else:
                tree = shared
            controller = Controller(
                tree,
                broker_id=broker_id,
                config=config,
                clock=clock,
                random_bytes=os.urandom,
                is_shared=shared is not None,
            )
            member = None if shared is None else new_member(controller, shared, broker_id, config, clock)
            controller.add_listener(table.on_image)
            controller.add_preparer(table.prepare)
            table.retell = controller.ledger.retell
            await controller.load()
            _set_cluster_id(table, controller.image.cluster_id)
            _tell_start(vitals.version, broker_id, controller.image, table.directories)
            controller.add_listener(EventLog(controller.image).on_image)
            vitals.state = BrokerState.RECOVERY
            recovered = await table.recover()
            vitals.state = BrokerState.STARTING
            broker = _Broker(broker_id, config, clock, controller, member, table, flusher, vitals, began)
            await broker.run(topics, recovered, on_ready, stop, interceptor)
    finally:
        vitals.state = BrokerState.NOT_RUNNING
    logger.info("stopped")


@contextmanager
def _open_table(
    files: FileCache, paths: Sequence[str], broker_id: int, config: BrokerConfig, flusher: Flusher, clock: Clock
) -> Iterator[PartitionTable]:
    """Closed when all went well; else its directories are let go as they are, and recovered at the next start."""
    directories, broken = _open_directories(files, paths, broker_id)
    try:
        table = PartitionTable(
            directories,
            broker_id=broker_id,
            config=config,
            flusher=flusher,
            clock=clock,
            random_name=lambda: os.urandom(16).hex(),
            broken=broken,
        )
        yield table
    except BaseException:
        for directory in directories:
            directory.release()
        raise
    table.close()


def _set_cluster_id(table: PartitionTable, cluster_id: str) -> None:
    for directory in table.directories:
        try:
            directory.set_cluster_id(cluster_id)
        except StorageFailure as failure:
            table.gates[directory.path].close(failure)


def _tell_start(version: str, broker_id: int, image: Image, directories: Sequence[DataDirectory]) -> None:
    paths = [directory.path for directory in directories]
    fields = {
        "version": version,
        "pid": os.getpid(),
        "broker_id": broker_id,
        "cluster_id": image.cluster_id,
        "topics": len(image.topics),
        "log_dirs": paths,
    }
    text = "kbroker %s starts: broker %d of cluster %s, %d topics in %s"
    logger.info(text, version, broker_id, image.cluster_id, len(image.topics), ", ".join(paths), extra=fields)


def _refuse_what_is_not_served(config: BrokerConfig) -> None:
    """Better no start than a listener that is less safe, or a cluster that is smaller, than somebody asked for."""
    for endpoint in config.endpoints:
        if endpoint.security_protocol != "PLAINTEXT":
            raise UserError(f"{endpoint} asks for {endpoint.security_protocol}, and only PLAINTEXT is served yet")


def _open_directories(
    files: FileCache, paths: Sequence[str], broker_id: int
) -> tuple[list[DataDirectory], dict[str, StorageFailure]]:
    """Those that can be used, and what is wrong with the others: without these the broker starts, as Kafka does. Not
    without the first, which holds the metadata."""
    opened: list[DataDirectory] = []
    broken: dict[str, StorageFailure] = {}
    try:
        for path in paths:
            try:
                directory = DataDirectory.open(files, path, broker_id=broker_id, random_below=random.Random().randrange)
            except StorageFailure as failure:
                if not opened:
                    raise UserError(f"the data directory cannot be used: {failure}") from failure
                broken[normalized(path)] = StorageFailure(str(failure))  # one that is full too: nothing in it is known
            else:
                opened.append(directory)
    except BaseException:
        for directory in opened:
            directory.release()
        raise
    return opened, broken


def _open_own_tree(directory: DataDirectory) -> AbstractAsyncContextManager[Tree]:
    return open_embedded_tree(os.path.join(directory.path, METADATA_FILE))


class _Broker:
    """What lives from the first socket to the last."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        member: ClusterMember | None,
        table: PartitionTable,
        flusher: Flusher,
        vitals: Vitals,
        began: float,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._controller = controller
        self._member = member
        self._table = table
        self._flusher = flusher
        self._vitals = vitals
        self._began = began

    async def run(
        self,
        topics: Sequence[tuple[str, int]],
        recovered: Sequence[tuple[str, int]],
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
            dispatch = Dispatch(context)
            network = Network(dispatch, _limits(config), self._clock)
            self._follow_limits(network)
            server = SocketServer(network)
            vitals = self._vitals
            vitals.context, vitals.network, vitals.dispatch = context, network, dispatch
            try:
                listeners = [server.listen(each.name, each.host, each.port) for each in config.endpoints]
                ports = {listener.name: listener.port for listener in listeners}
                await self._register(background, _advertised(config, ports), recovered)
                if self._member is None:
                    await self._create_topics(topics)
                background.start_soon(context.deadlines.run)
                background.start_soon(self._flusher.run)
                background.start_soon(self._maintenance(context).run)
                vitals.cleaner = cleaner = LogCleaner(self._table, self._flusher, config, self._clock)
                self._controller.add_listener(cleaner.on_image)
                background.start_soon(cleaner.run)
                background.start_soon(LogDirMover(self._table, config, self._clock).run)
                self._table.moves.resume()
                if self._member is not None:
                    background.start_soon(LagWatch(self._table.peers, self._clock).run)
                    background.start_soon(self._fetchers(network).run)
                background.start_soon(context.groups.run)
                background.start_soon(context.transactions.run)
                await background.start(server.run)
                if self._member is not None:
                    await self._member.wait_until_told()
                    await self._create_topics(topics)
                vitals.state = BrokerState.RUNNING
                self._tell_ready(listeners)
                on_ready([address for listener in listeners for address in listener.addresses])
                await stop.wait()
                vitals.state = BrokerState.SHUTTING_DOWN
                if self._member is not None and config.controlled_shutdown_enable:
                    await self._member.leave()
                logger.info("stopping: connections have %d s to get their answers", GRACE_SECONDS)
                server.stop_accepting()
                self._table.answer_waiters()
                context.transactions.stop()
                context.groups.stop()
                await server.stop(GRACE_SECONDS)
            finally:
                if self._member is not None:
                    self._member.give_up()
                server.stop_accepting()
                background.cancel_scope.cancel()

    def _maintenance(self, context: Context) -> Maintenance:
        bump = (self._member or self._controller).bump_leader_epochs
        return Maintenance(self._table, self._flusher, self._config, self._clock, context.quotas, bump)

    async def _register(
        self, background: trio.Nursery, endpoints: Sequence[Endpoint], recovered: Sequence[tuple[str, int]]
    ) -> None:
        """Whoever joins a cluster leads nothing until the controller says so, under an epoch of its own."""
        member = self._member
        if member is not None:
            proposer = IsrProposer(lambda proposals: member.link.alter_partitions(member.broker_epoch, proposals))
            self._table.peers.proposals = proposer
            background.start_soon(proposer.run)
            await background.start(member.run, endpoints)
            return
        await self._controller.register(endpoints)
        if recovered:
            await self._controller.bump_leader_epochs(recovered)

    def _tell_ready(self, listeners: Sequence[Listener]) -> None:
        seconds = self._clock.monotonic() - self._began
        names = [f"{each.name}://{_host_port(*address)}" for each in listeners for address in each.addresses]
        fields = {"listeners": names, "start_seconds": round(seconds, 3)}
        logger.info("ready after %.2f s on %s", seconds, ", ".join(names), extra=fields)

    def _context(self, nursery: trio.Nursery) -> Context:
        randomness = random.Random()
        deadlines = Deadlines()
        run = AppendRun(self._clock)
        groups = self._groups(deadlines, run)
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
            append_run=run,
            groups=groups,
            transactions=self._transactions(deadlines, groups),
            quotas=self._quotas(deadlines),
            nursery=nursery,
            member=self._member,
        )

    def _fetchers(self, network: Network) -> ReplicaFetchers:
        controller = self._controller

        def share_loop(is_shared: bool) -> None:
            network.is_loop_shared = is_shared

        fetchers = new_fetchers(self._table, self._flusher, self._config, self._clock, self._broker_id)
        fetchers.on_busy = share_loop
        fetchers.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(fetchers.on_image)
        return fetchers

    def _follow_limits(self, network: Network) -> None:
        """Limits of connections may change while the broker runs."""

        def on_image(image: Image, changes: Sequence[Change]) -> None:
            if any(isinstance(each, EntityConfigsChanged) for each in changes):
                network.quotas.set_limits(_limits(self._config))
                network.quotas.set_address_rates(address_rates(image.entity_configs))

        network.quotas.set_address_rates(address_rates(self._controller.image.entity_configs))
        self._controller.add_listener(on_image)

    def _quotas(self, deadlines: Deadlines) -> Quotas:
        quotas = Quotas(self._config, self._clock, deadlines)
        entities = self._controller.image.entity_configs
        quotas.on_image(self._controller.image, [EntityConfigsChanged(*each) for each in entities.items()])
        self._controller.add_listener(quotas.on_image)
        return quotas

    def _groups(self, deadlines: Deadlines, run: AppendRun) -> GroupCoordinator:
        config = self._config
        controller = self._controller

        groups = GroupCoordinator(
            broker_id=self._broker_id,
            partitions=self._table,
            config=_group_config(config),
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            clock=self._clock,
            timers=deadlines,
            new_id=lambda: str(uuid.UUID(bytes=random_uuid(os.urandom))),
            timeouts=lambda overrides: ConsumerTimeouts(*consumer_timeouts(config, overrides)),
            create_topic=partial(self._create_internal_topic, CONSUMER_OFFSETS),
            flush_at_end=run.flush_at_end,
        )
        groups.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(groups.on_image)
        return groups

    def _transactions(self, deadlines: Deadlines, groups: GroupCoordinator) -> TransactionCoordinator:
        config, controller, table = self._config, self._controller, self._table

        def find(topic: str, index: int) -> Partition | ErrorCode:
            if table.is_offline(topic, index):
                return ErrorCode.KAFKA_STORAGE_ERROR
            is_known = controller.image.partition(topic, index) is not None
            missing = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return table.get(topic, index) or missing

        transactions = TransactionCoordinator(
            broker_id=self._broker_id,
            partitions=table,
            config=TransactionConfig(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                config.transaction_remove_expired_transaction_cleanup_interval_ms,
                config.transactional_id_expiration_ms,
            ),
            clock=self._clock,
            timers=deadlines,
            markers=Markers(find=find, groups=groups, clock=self._clock, timers=deadlines),
            create_topic=partial(self._create_internal_topic, TRANSACTION_STATE),
        )
        transactions.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(transactions.on_image)
        return transactions

    async def _create_internal_topic(self, name: str) -> None:
        controller = self._controller
        broker_count = len(controller.image.brokers)
        wanted = new_topic(name, self._config, broker_count=broker_count)
        await create_topics(controller, self._member, [wanted])

    async def _create_topics(self, topics: Sequence[tuple[str, int]]) -> None:
        wanted = [NewTopic(name, partitions=count) for name, count in topics]
        outcomes = await create_topics(self._controller, self._member, wanted) if wanted else []
        for (name, _), outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise UserError(f"topic {name} cannot be created: {outcome.message}")


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=known_assignors(config.group_consumer_assignors),
        may_upgrade=config.group_consumer_migration_policy.lower() in ("upgrade", "bidirectional"),
        may_downgrade=config.group_consumer_migration_policy.lower() in ("downgrade", "bidirectional"),
    )


def _limits(config: BrokerConfig) -> ConnectionLimits:
    overrides = parse_host_counts(config.max_connections_per_ip_overrides)
    return ConnectionLimits(
        max_request_size=config.socket_request_max_bytes,
        queued_max_request_bytes=config.queued_max_request_bytes,
        max_idle_ms=config.connections_max_idle_ms,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=overrides if isinstance(overrides, dict) else {},
        max_connection_rate=config.max_connection_creation_rate,
        rate_window_count=config.quota_window_num,
        rate_window_seconds=config.quota_window_size_seconds,
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
