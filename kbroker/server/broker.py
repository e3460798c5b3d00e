"""The composition root: creates the broker's objects once, passes them on, and owns the tree of nurseries.

Start order: data directories (locked), metadata, logs (recovered after a crash), sockets, registration; only then are
connections accepted. Stop order: listeners, connections with a grace period, background tasks, logs, the lock.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from kbroker.clock import Clock, SystemClock
from kbroker.config.authorizer import authorizer_config
from kbroker.config.broker import BrokerConfig, parse_host_counts
from kbroker.config.endpoints import Endpoint, format_address
from kbroker.config.supported import check_supported
from kbroker.controller.changes import Change, EntityConfigsChanged, TopicAdded
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees.embedded_tree import open_embedded_tree
from kbroker.controller.trees.tree import Tree
from kbroker.errors import Refusal, StorageFailure, UserError
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.names import METADATA_FILE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_walk import IS_COMPILED
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.cleaning.log_cleaner import LogCleaner
from kbroker.replication.flusher import Flusher
from kbroker.replication.isr_proposer import IsrProposer
from kbroker.replication.lag_watch import LagWatch
from kbroker.replication.log_dir_mover import LogDirMover
from kbroker.replication.log_dirs import LogDirs
from kbroker.server.cluster import (
    find_broker_id,
    inter_broker_security,
    new_fetchers,
    new_member,
    open_shared_tree,
)
from kbroker.server.context import Context
from kbroker.server.context_builder import ContextBuilder
from kbroker.server.descriptors import raise_descriptor_limit
from kbroker.server.event_log import EventLog
from kbroker.server.freed_memory import FreedMemory
from kbroker.server.maintenance import Maintenance
from kbroker.server.quotas.client_quotas import address_rate
from kbroker.server.replica_storage import open_replicas, set_cluster_id
from kbroker.server.requests.dispatch import Dispatch
from kbroker.server.requests.interceptor import Interceptor
from kbroker.server.status import BrokerState, BrokerStatus
from kbroker.server.topics.topic_creation import create_topics
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.listener import Listener
from kbroker.server.wire.network import Network
from kbroker.server.wire.socket_server import SocketServer

if TYPE_CHECKING:
    from kbroker.client.connection_security import ConnectionSecurity
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.token_store import TokenStore
    from kbroker.replication.fetching.replica_fetchers import ReplicaFetchers
    from kbroker.server.access.acls import AclAccess
    from kbroker.server.listener_tls import ReloadableTls
    from kbroker.server.wire.connection import Connection

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
    status: BrokerStatus | None = None,
    clock: Clock | None = None,
) -> None:
    """Runs a broker until `stop` is set. Raises UserError if it cannot start for a reason that the operator can fix.

    `topics`: created at the start if missing, with their partition counts; -1 for num.partitions. `status`: kept up to
    date while the broker runs. `clock`: None for the system's clocks.
    """
    check_supported(config)
    tls = _load_tls(config)  # before anything is opened: a wrong key is the most likely failure
    security = _security_between_brokers(config, tls)
    clock = SystemClock() if clock is None else clock
    began = clock.monotonic()
    status = BrokerStatus() if status is None else status
    status.state = BrokerState.STARTING
    paths = (data_dir,) if data_dir is not None else config.data_dirs
    files = FileCache(OsFileSystem(), limit=raise_descriptor_limit())
    try:
        async with AsyncExitStack() as stack:
            shared = await stack.enter_async_context(open_shared_tree(config)) if config.zookeeper_connect else None
            broker_id = await find_broker_id(config, shared, paths)
            flusher = Flusher(clock)
            status.flusher = flusher
            replicas = stack.enter_context(open_replicas(files, paths, broker_id, config, flusher, clock))
            if shared is None:
                tree = await stack.enter_async_context(_open_embedded_tree(replicas.log_dirs))
            else:
                tree = shared
                status.zookeeper_session = shared.stats
            controller = Controller(
                tree,
                broker_id=broker_id,
                config=config,
                clock=clock,
                random_bytes=os.urandom,
                is_shared=shared is not None,
            )
            member = None if shared is None else new_member(controller, shared, broker_id, config, clock, security)
            if member is not None:
                member.report_offline(replicas.log_dirs.offline_partitions)
                member.control_requests.delete_unassigned = replicas.delete_unassigned
            controller.add_listener(replicas.on_image)
            controller.add_preparer(replicas.prepare)
            replicas.republish = controller.store.republish
            try:
                await controller.load(partial(set_cluster_id, replicas.log_dirs))
            except StorageFailure as failure:
                raise _start_failure(failure) from failure
            _log_start(status.version, broker_id, controller.image, replicas.log_dirs.directories)
            controller.add_listener(EventLog(controller.image).on_image)
            status.state = BrokerState.RECOVERY
            recovered = await replicas.recover()
            status.state = BrokerState.STARTING
            acls = await _open_acls(config, tree, clock)
            tokens = await _open_tokens(config, tree, clock)
            broker = _Broker(
                broker_id,
                config,
                clock,
                controller,
                member,
                replicas,
                flusher,
                status,
                began,
                tls,
                security,
                acls,
                tokens,
            )
            await broker.run(topics, recovered, on_ready, stop, interceptor)
    finally:
        status.state = BrokerState.NOT_RUNNING
    logger.info("Stopped")


def _log_start(version: str, broker_id: int, image: Image, directories: Sequence[DataDirectory]) -> None:
    paths = [directory.path for directory in directories]
    hot_path = "compiled" if IS_COMPILED else "not compiled"
    fields = {
        "version": version,
        "compiled": IS_COMPILED,
        "pid": os.getpid(),
        "broker_id": broker_id,
        "cluster_id": image.cluster_id,
        "topics": len(image.topics),
        "log_dirs": paths,
    }
    text = "Starting kbroker %s (%s): broker %d of cluster %s, %d topics in %s"
    names = ", ".join(paths)
    logger.info(text, version, hot_path, broker_id, image.cluster_id, len(image.topics), names, extra=fields)


@asynccontextmanager
async def _open_embedded_tree(log_dirs: LogDirs) -> AsyncIterator[Tree]:
    """Opens the tree in the first data directory. On a full disk its writes use the directory's reserve."""
    path = log_dirs.directories[0].path
    make_room = log_dirs.gates[path].make_room
    async with AsyncExitStack() as stack:
        try:
            tree = await stack.enter_async_context(open_embedded_tree(os.path.join(path, METADATA_FILE), make_room))
        except StorageFailure as failure:
            raise _start_failure(failure) from failure
        yield tree


async def _open_acls(config: BrokerConfig, tree: Tree, clock: Clock) -> AclAccess | None:
    """Returns None if no authorizer is configured."""
    rules = authorizer_config(config)
    if rules is None:
        return None
    from kbroker.server.access.acls import open_acls

    try:
        return await open_acls(rules, tree, clock, timeout_s=config.request_timeout_ms / 1000)
    except StorageFailure as failure:
        raise _start_failure(failure) from failure


async def _open_tokens(config: BrokerConfig, tree: Tree, clock: Clock) -> TokenStore | None:
    """Returns None if delegation tokens are not configured."""
    secret_key = config.delegation_token_secret_key
    if secret_key is None or not secret_key.value:
        return None
    from kbroker.server.access.tokens import open_tokens

    try:
        return await open_tokens(config, secret_key.value, tree, clock)
    except StorageFailure as failure:
        raise _start_failure(failure) from failure


def _start_failure(failure: StorageFailure | Refusal) -> UserError:
    """Returns the error for a start that failed because the metadata could not be written."""
    text = str(failure) if isinstance(failure, StorageFailure) else failure.message
    return UserError(
        f"Cannot write the metadata: {text}. Free some megabytes on the disk, then start the broker again."
    )


class _Broker:
    """Starts, connects and stops the parts of a broker, once its metadata and logs are loaded."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        member: ClusterMember | None,
        replicas: AssignedReplicas,
        flusher: Flusher,
        status: BrokerStatus,
        began: float,
        tls: Mapping[str, ReloadableTls],
        security: ConnectionSecurity | None,
        acls: AclAccess | None,
        tokens: TokenStore | None,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._controller = controller
        self._member = member
        self._replicas = replicas
        self._flusher = flusher
        self._status = status
        self._began = began
        self._acls = acls
        self._tokens = tokens
        self._tls = tls
        self._security = security
        self._builder = ContextBuilder(broker_id, config, clock, controller, member, replicas, security, acls, tokens)

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
            context = self._builder.build(background)
            context.interceptor = interceptor
            context.listener_keys = self._tls
            for tls in self._tls.values():
                tls.use_stored_configs()
            if interceptor is not None:
                interceptor.attach(context)
            dispatch = Dispatch(context)
            network = Network(dispatch, _limits(config), self._clock)
            self._follow_limits(network)
            server = SocketServer(network)
            status = self._status
            status.context, status.network, status.dispatch = context, network, dispatch
            status.peers = self._replicas.peers
            status.tls_listeners = self._tls
            try:
                logins = await self._logins(context, dispatch, network, background)
                listeners = [self._listen(server, endpoint, logins.get(endpoint.name)) for endpoint in config.endpoints]
                ports = {listener.name: listener.port for listener in listeners}
                await self._register(background, _advertised(config, ports), recovered)
                if self._member is None:
                    await self._create_topics(topics)
                background.start_soon(context.deadlines.run)
                background.start_soon(self._flusher.run)
                if self._acls is not None:
                    background.start_soon(self._acls.store.run)
                if self._tokens is not None:
                    background.start_soon(self._tokens.run)
                    interval_s = config.delegation_token_expiry_check_interval_ms / 1000
                    background.start_soon(self._tokens.run_expiry, interval_s, lambda: self._controller.store.is_active)
                background.start_soon(self._replicas.fetch_wakeups.run)
                background.start_soon(self._maintenance(context).run)
                if self._tls:
                    from kbroker.server.certificate_expiry import watch_expiry

                    background.start_soon(watch_expiry, self._tls, self._clock)
                status.cleaner = cleaner = LogCleaner(self._replicas, self._flusher, config, self._clock)
                self._controller.add_listener(cleaner.on_image)
                background.start_soon(cleaner.run)
                background.start_soon(LogDirMover(self._replicas, config, self._clock).run)
                self._replicas.moves.resume(self._replicas.table.replica)
                if self._member is not None:
                    background.start_soon(context.producer_ids.keep_reserve)
                    background.start_soon(LagWatch(self._replicas.peers, self._clock).run)
                    status.fetchers = self._fetchers(network, server)
                background.start_soon(context.groups.run)
                background.start_soon(context.transactions.run)
                await background.start(server.run)
                if status.fetchers is not None:
                    status.fetchers.watch = self._builder.watch = server.socket_watch
                    background.start_soon(status.fetchers.run)
                if self._member is not None:
                    await self._member.wait_metadata_received()
                    background.start_soon(self._rename_strays, self._member)
                    await self._create_topics(topics)
                status.state = BrokerState.RUNNING
                self._log_ready(listeners)
                on_ready([address for listener in listeners for address in listener.addresses])
                await stop.wait()
                status.state = BrokerState.SHUTTING_DOWN
                if self._member is not None:
                    if config.controlled_shutdown_enable:
                        await self._member.shut_down()
                    await self._member.resign()
                logger.info("Stopping: waiting up to %d s for responses to connected clients", GRACE_SECONDS)
                server.stop_accepting()
                self._replicas.answer_waiters()
                context.transactions.shards.stop()
                context.groups.shards.stop()
                await server.stop(GRACE_SECONDS)
            finally:
                if self._member is not None:
                    self._member.stop_waiting()
                server.stop_accepting()
                background.cancel_scope.cancel()

    async def _logins(
        self, context: Context, dispatch: Dispatch, network: Network, background: trio.Nursery
    ) -> dict[str, Callable[[Connection], None]]:
        """Returns the functions that begin logins of connections, by listener. Empty without a SASL listener."""
        if not any(endpoint.security_protocol.startswith("SASL_") for endpoint in self._config.endpoints):
            return {}
        from kbroker.server.authentication.sasl_listeners import open_sasl_listeners

        listeners = await open_sasl_listeners(context, dispatch, network, background)
        self._status.sasl_listeners = listeners
        return {name: listener.on_open for name, listener in listeners.items()}

    def _listen(
        self, server: SocketServer, endpoint: Endpoint, begin_login: Callable[[Connection], None] | None
    ) -> Listener:
        name, host, port, protocol = endpoint
        if protocol == "PLAINTEXT":
            return server.listen(name, host=host, port=port)
        return server.listen(name, host=host, port=port, tls=self._tls.get(name), begin_login=begin_login)

    async def _rename_strays(self, member: ClusterMember) -> None:
        """Renames the logs that this broker does not have any more: it was down when they were deleted or moved."""
        self._replicas.rename_strays(self._controller.image, await member.read_topic_names())

    def _maintenance(self, context: Context) -> Maintenance:
        bump = (self._member or self._controller).bump_leader_epochs
        return Maintenance(
            self._replicas,
            self._flusher,
            self._config,
            self._clock,
            context.quotas,
            bump,
            context.thread_work,
            FreedMemory(),
            announce_failure=None if self._member is None else self._member.announce_failed_directory,
        )

    async def _register(
        self, background: trio.Nursery, endpoints: Sequence[Endpoint], recovered: Sequence[tuple[str, int]]
    ) -> None:
        """Registers the broker.

        In a cluster, recovered partitions need no new leader epoch here: the broker leads nothing until the controller
        elects it, which bumps the epoch.
        """
        member = self._member
        if member is not None:
            proposer = IsrProposer(lambda proposals: member.link.alter_partitions(member.broker_epoch, proposals))
            self._replicas.peers.proposals = proposer
            background.start_soon(proposer.run)
            await background.start(member.run, endpoints)
            return
        try:
            await self._controller.register(endpoints)
            if recovered:
                await self._controller.bump_leader_epochs(recovered)
        except (StorageFailure, Refusal) as failure:
            raise _start_failure(failure) from failure

    def _log_ready(self, listeners: Sequence[Listener]) -> None:
        seconds = self._clock.monotonic() - self._began
        names = [
            f"{listener.name}://{format_address(*address)}" for listener in listeners for address in listener.addresses
        ]
        fields = {"listeners": names, "start_seconds": round(seconds, 3)}
        logger.info("Started in %.2f s, listening on %s", seconds, ", ".join(names), extra=fields)

    def _fetchers(self, network: Network, server: SocketServer) -> ReplicaFetchers:
        controller = self._controller
        is_encrypted = self._security is not None and self._security.tls is not None

        def on_busy(is_busy: bool) -> None:
            network.has_peers = is_busy
            network.is_loop_shared = is_busy and (is_encrypted or server.is_portable)

        fetchers = new_fetchers(
            self._replicas.table, self._flusher, self._config, self._clock, self._broker_id, self._security
        )
        fetchers.on_busy = on_busy
        fetchers.checkpoint = self._replicas.log_dirs.checkpoint
        fetchers.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(fetchers.on_image)
        return fetchers

    def _follow_limits(self, network: Network) -> None:
        """Applies changes of connection limits while the broker runs."""

        def on_image(_image: Image, changes: Sequence[Change]) -> None:
            entities = [change for change in changes if isinstance(change, EntityConfigsChanged)]
            if any(change.entity.startswith("brokers/") for change in entities):
                network.quotas.set_limits(_limits(self._config))
            for change in entities:
                if (rate := address_rate(change.entity, change.configs)) is not None:
                    network.quotas.set_address_rate(*rate)

        image = self._controller.image
        on_image(image, [EntityConfigsChanged(*entity) for entity in image.entity_configs.items()])
        self._controller.add_listener(on_image)

    async def _create_topics(self, topics: Sequence[tuple[str, int]]) -> None:
        wanted = [NewTopic(name, partitions=count) for name, count in topics]
        outcomes = await create_topics(self._controller, self._member, wanted) if wanted else []
        for (name, _), outcome in zip(topics, outcomes, strict=True):
            if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise UserError(f"Could not create topic {name}: {outcome.message}")


def _load_tls(config: BrokerConfig) -> dict[str, ReloadableTls]:
    """Returns the TLS of each listener that uses it. Raises UserError if one has no valid key."""
    names = [endpoint.name for endpoint in config.endpoints if endpoint.security_protocol in ("SSL", "SASL_SSL")]
    if not names:
        return {}
    from kbroker.server.listener_tls import ReloadableTls  # a broker without TLS loads no OpenSSL

    return {name: ReloadableTls(config, name) for name in names}


def _security_between_brokers(config: BrokerConfig, tls: Mapping[str, ReloadableTls]) -> ConnectionSecurity | None:
    """Returns the settings of connections to other brokers; None on a single node, and for PLAINTEXT.

    Raises UserError if a key, a certificate or a login of the config cannot be used.
    """
    security = inter_broker_security(config) if config.zookeeper_connect else None
    if security is not None and security.tls is not None:
        tls[config.inter_broker_endpoint.name].outbound = security.tls
    return security


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
    """Returns the advertised endpoints: port 0 becomes the bound port, an empty host this machine's name."""
    return tuple(
        endpoint._replace(
            host=endpoint.host if endpoint.host not in ("", "0.0.0.0", "::") else socket.gethostname(),
            port=endpoint.port or ports[endpoint.name],
        )
        for endpoint in config.advertised_endpoints
    )
