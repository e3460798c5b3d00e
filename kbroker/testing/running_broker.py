"""A broker in the trio loop of its user, on a free port of the loopback interface."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import trio

from kbroker.client.address import Address
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.clock import Clock, SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import format_address
from kbroker.controller.acl_store import AclStore
from kbroker.controller.rules.topic_rules import DEFAULT, NewTopic
from kbroker.errors import Refusal, UserError
from kbroker.protocol.registry import Api
from kbroker.security.acls.entries import AclBinding
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.text import parse_acl
from kbroker.server.context import Context
from kbroker.server.requests.request import Handler
from kbroker.testing.faults import Faults
from kbroker.testing.kafka_record import KafkaRecord, NewRecord, produce, read_records
from kbroker.testing.logins import BrokerUsers
from kbroker.testing.lone_exceptions import lone_exceptions
from kbroker.testing.settings import (
    Acls,
    Setting,
    Topics,
    acl_properties,
    config_for_tests,
    listener_properties,
    properties_of,
    protocol_for,
    topics_of,
    warn_about,
)
from kbroker.testing.tls_files import ClientAuth, TlsFiles, make_tls_files, tls_properties
from kbroker.web.monitor import run_monitored_broker

__all__ = ["Bootstrap", "RunningBroker", "run_broker", "running_broker", "running_with"]


class RunningBroker:
    """A broker that runs in the current trio loop, and its interceptor."""

    def __init__(
        self,
        faults: Faults | None = None,
        clock: Clock | None = None,
        users: BrokerUsers | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._users = users
        self._tls = tls
        self._security: ConnectionSecurity | None = None  # of the connections of `produce` and `records`
        self._clock = SystemClock() if clock is None else clock
        self.host = ""
        self.port = 0
        self.faults = faults if faults is not None else Faults()
        self._asked_to_stop = trio.Event()
        self._has_stopped = trio.Event()
        self._context: Context | None = None

    @property
    def bootstrap(self) -> str:
        """Returns HOST:PORT, the bootstrap.servers of clients."""
        return format_address(self.host, self.port)

    @property
    def tls(self) -> TlsFiles:
        """Returns the files for clients of this broker. Raises UserError if it was created without `tls`."""
        if self._tls is None:
            raise UserError("The broker has no TLS: create it with tls=True")
        return self._tls

    @property
    def topics(self) -> list[str]:
        """Returns the names of all topics, including internal topics."""
        return sorted(self._running().controller.image.topics)

    async def create_topic(self, name: str, partitions: int = DEFAULT, **configs: Setting) -> None:
        """Creates a topic. Configs have Kafka's names, with underscores for dots.

        Raises UserError if the topic exists or is invalid.
        """
        new = NewTopic(name, partitions=partitions, configs=dict(properties_of(configs)))
        (outcome,) = await self._running().controller.create_topics([new])
        if isinstance(outcome, Refusal):
            raise UserError(f"Could not create topic {name}: {outcome.message}")

    async def add_acls(self, acls: Sequence[str]) -> None:
        """Adds ACLs: lines such as `allow User:ANONYMOUS READ,WRITE topic orders`. `orders-*` is a prefix.

        Raises UserError if a line has another form, or if the broker has no authorizer.
        """
        for refusal in await self._acl_store().add(_bindings(acls)):
            if refusal is not None:
                raise UserError(f"Could not add an ACL: {refusal.message}")

    async def remove_acls(self, acls: Sequence[str]) -> None:
        """Removes ACLs, which have the form of `add_acls`."""
        bindings = _bindings(acls)
        filters = [AclFilter(kind, name, pattern_type, *entry) for (kind, name, pattern_type), entry in bindings]
        await self._acl_store().remove(filters)

    def _acl_store(self) -> AclStore:
        store = self._running().acls
        if store is None:
            raise UserError("The broker has no authorizer: create it with acls=[…]")
        return store

    async def delete_topic(self, name: str) -> None:
        (outcome,) = await self._running().controller.delete_topics([name])
        if isinstance(outcome, Refusal):
            raise UserError(f"Could not delete topic {name}: {outcome.message or 'it does not exist'}")

    def advertised(self, listener: str) -> str:
        """Returns HOST:PORT as clients of this listener get it."""
        context = self._running()
        endpoint = context.controller.image.brokers[context.broker_id].endpoint(listener)
        assert endpoint is not None
        return format_address(endpoint.host, endpoint.port)

    async def produce(self, topic: str, records: Iterable[NewRecord]) -> None:
        """Writes records to a topic, and returns when they are committed."""
        self._running()
        await produce(Address(self.host, self.port), topic, records, self._clock.now_ms(), self._security)

    async def records(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0, read_committed: bool = True
    ) -> list[KafkaRecord]:
        """Returns the records of a topic, ordered by partition and offset.

        With `count`, waits until there are at least so many, and raises AssertionError after `timeout` seconds.
        """
        self._running()
        address = Address(self.host, self.port)
        return await read_records(
            address, topic, count, timeout=timeout, read_committed=read_committed, security=self._security
        )

    def client_settings(self, user: str, mechanism: str = "PLAIN") -> dict[str, str]:
        """Returns the settings with which a client logs in as one of the `users`, with the names of librdkafka."""
        if self._users is None:
            raise UserError("The broker has no users: create it with users={'name': 'password'}")
        settings = {"bootstrap.servers": self.bootstrap, **self._users.client_settings(user, mechanism)}
        return settings if self._tls is None else {**settings, **self._tls.librdkafka, "security.protocol": "SASL_SSL"}

    async def store_users(self) -> None:
        if self._users is not None:
            await self._users.store(self._running().controller)

    async def stop(self) -> None:
        """Shuts down cleanly; all data is on disk when this returns. No-op if the broker is already stopped."""
        self.ask_to_stop()
        await self.wait_stopped()

    def ask_to_stop(self) -> None:
        self.faults.clear()  # Otherwise delayed responses would delay the shutdown.
        self._asked_to_stop.set()

    async def wait_stopped(self) -> None:
        await self._has_stopped.wait()

    # Interceptor: called by the broker

    @property
    def is_idle(self) -> bool:
        return self.faults.is_idle

    def attach(self, context: Context) -> None:
        self._context = context
        self.faults.attach(context)

    def intercept(self, api: Api, handler: Handler) -> Handler:
        return self.faults.intercept(api, handler)

    # Internal

    def _running(self) -> Context:
        if self._context is None or self._has_stopped.is_set():
            raise UserError("The broker is not running")
        return self._context

    async def _run(
        self,
        config: BrokerConfig,
        data_dir: str,
        topics: Sequence[tuple[str, int]],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        self._security = _helper_security(config, self._users)

        def on_ready(addresses: list[tuple[str, int]]) -> None:
            self.host, self.port = addresses[0]
            task_status.started()

        try:
            await run_monitored_broker(
                config,
                data_dir=data_dir,
                topics=topics,
                on_ready=on_ready,
                stop=self._asked_to_stop,
                interceptor=self,
                clock=self._clock,
            )
        finally:
            self._has_stopped.set()


def _helper_security(config: BrokerConfig, users: BrokerUsers | None) -> ConnectionSecurity | None:
    """Returns the security of the first listener. With TLS, the helpers show the certificate of the broker."""
    endpoint = config.endpoints[0]
    if endpoint.security_protocol == "PLAINTEXT":
        return None
    tls = None
    if endpoint.security_protocol.endswith("SSL"):
        from kbroker.client.client_tls import ClientTls  # loads OpenSSL

        tls = ClientTls(config.listener_config(endpoint.name))
    return ConnectionSecurity(None if users is None else users.helper_login, tls)


class Bootstrap(str):
    """HOST:PORT for bootstrap.servers, with the broker as attribute `broker`."""

    __slots__ = ("broker",)
    broker: RunningBroker

    def __new__(cls, broker: RunningBroker) -> Self:
        bootstrap = super().__new__(cls, broker.bootstrap)
        bootstrap.broker = broker
        return bootstrap


def _bindings(acls: Sequence[str]) -> list[AclBinding]:
    return [binding for line in acls for binding in parse_acl(line)]


@asynccontextmanager
async def run_broker(
    *,
    topics: Topics = (),
    acls: Acls = None,
    data_dir: str | os.PathLike[str] | None = None,
    users: Mapping[str, str] | None = None,
    tls: bool | ClientAuth = False,
    **settings: Setting,
) -> AsyncIterator[Bootstrap]:
    """Runs a broker and yields its HOST:PORT. Settings have Kafka's names, with underscores for dots.

    Without `data_dir`, the data is removed on exit. `users`: passwords by name. Clients must then log in with SASL.
    `acls`: lines as for `RunningBroker.add_acls`; the broker then has an authorizer.
    `tls`: clients must then connect with TLS, and the files of `RunningBroker.tls`; "required" demands a certificate.
    """
    logins = None if users is None else BrokerUsers(users)
    protocol = protocol_for(has_users=logins is not None, has_tls=bool(tls))
    with tempfile.TemporaryDirectory(prefix="kbroker-") as temporary, lone_exceptions():
        files = make_tls_files(os.path.join(temporary, "tls")) if tls else None
        client_auth: ClientAuth = "requested" if isinstance(tls, bool) else tls
        properties = {
            **(listener_properties(None, "", protocol=protocol) if protocol != "PLAINTEXT" else {}),
            **(logins.properties([protocol]) if logins is not None else {}),
            **(tls_properties(files, client_auth, [protocol]) if files is not None else {}),
            **properties_of(settings),
            **acl_properties(acls, properties_of(settings)),
        }
        config = config_for_tests(properties)
        warn_about(config, stacklevel=3)
        data = data_dir or os.path.join(temporary, "data")
        async with running_with(config, data, topics_of(topics), users=logins, tls=files) as broker:
            if acls:
                await broker.add_acls(acls)
            yield Bootstrap(broker)


@asynccontextmanager
async def running_broker(
    data_dir: str | os.PathLike[str],
    properties: Mapping[str, str] | None = None,
    *,
    topics: Sequence[tuple[str, int]] = (),
) -> AsyncIterator[RunningBroker]:
    """Runs a broker with `properties` under Kafka's names, creates `topics`, and shuts down cleanly on exit."""
    defaults = {"listeners": "PLAINTEXT://127.0.0.1:0", "kbroker.log.dir.reserve.bytes": "0"}
    config = BrokerConfig.from_properties({**defaults, **(properties or {})})
    async with running_with(config, data_dir, topics) as broker:
        yield broker


@asynccontextmanager
async def running_with(
    config: BrokerConfig,
    data_dir: str | os.PathLike[str],
    topics: Sequence[tuple[str, int]],
    faults: Faults | None = None,
    clock: Clock | None = None,
    users: BrokerUsers | None = None,
    tls: TlsFiles | None = None,
) -> AsyncIterator[RunningBroker]:
    broker = RunningBroker(faults, clock, users, tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker._run, config, os.fspath(data_dir), topics)
        try:
            await broker.store_users()
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                await broker.stop()
