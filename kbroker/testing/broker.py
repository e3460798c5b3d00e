"""A broker for programs that do not use trio: scripts, unittest, pytest, asyncio. Runs in a thread of this process."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from kbroker.config.broker import BrokerConfig
from kbroker.controller.rules.topic_rules import DEFAULT
from kbroker.errors import UserError
from kbroker.testing.broker_clock import BrokerClock
from kbroker.testing.faults import Faults
from kbroker.testing.kafka_record import KafkaRecord, NewRecord
from kbroker.testing.logins import BrokerUsers
from kbroker.testing.loop_thread import LoopThread
from kbroker.testing.running_broker import RunningBroker
from kbroker.testing.settings import (
    CONTAINERS,
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

__all__ = ["Broker"]

T = TypeVar("T")


class Broker:
    """A broker for tests: `with Broker(topics=["orders:3"], num_partitions=2) as broker:`.

    Clients connect to `broker.bootstrap`. Settings have Kafka's names, with underscores for dots. Without `data_dir`,
    the data is removed on exit. `acls`: lines such as `allow User:ANONYMOUS READ topic orders`, see `add_acls`. The
    broker then refuses everything else, also to `produce` and `records`, which are `User:ANONYMOUS` without `users`.
    `container_host`: the name by which containers reach this machine; then the broker also listens on
    `container_bind`, and clients in containers connect to `broker.container_bootstrap`. `users`: passwords by name.
    Clients must then log in with SASL, for example with the settings that `broker.client_settings` returns. `tls`:
    clients must connect with TLS, and the files in `broker.tls`; "required" also demands a client certificate.
    """

    def __init__(
        self,
        *,
        topics: Topics = (),
        acls: Acls = None,
        data_dir: str | os.PathLike[str] | None = None,
        container_host: str | None = None,
        container_bind: str = "0.0.0.0",
        users: Mapping[str, str] | None = None,
        tls: bool | ClientAuth = False,
        **settings: Setting,
    ) -> None:
        given = properties_of(settings)
        self._properties = {**given, **acl_properties(acls, given)}
        self._acls = acls or ()
        self._client_auth: ClientAuth = "requested" if isinstance(tls, bool) else tls
        self._tls = self._make_tls_files(container_host) if tls else None
        self._users = None if users is None else BrokerUsers(users)
        self._has_own_listeners = "listeners" in self._properties
        self._container_host = container_host
        self._container_bind = container_bind
        if container_host == "":
            raise UserError("container_host is empty: set the name by which containers reach this machine")
        if container_host is not None and self._has_own_listeners:
            raise UserError("Set either container_host or listeners: container_host adds a listener")
        if users is not None and self._has_own_listeners:
            raise UserError("Set either users or listeners: users changes the listener")
        if tls and self._has_own_listeners:
            raise UserError("Set either tls or listeners: tls changes the listener")
        self._config = self._config_with(None)
        warn_about(self._config, stacklevel=2)
        self._topics = topics_of(topics)
        self._stage = _Stage(None if data_dir is None else os.fspath(data_dir))
        self._running: RunningBroker | None = None
        self._clock = BrokerClock()
        self.faults = Faults(self._stage.call)
        weakref.finalize(self, self._stage.clear)

    def __repr__(self) -> str:
        where = "not running" if self._running is None else f"on {self.bootstrap}"
        return f"<kbroker.testing.Broker {where}>"

    def _make_tls_files(self, container_host: str | None) -> TlsFiles:
        directory = tempfile.mkdtemp(prefix="kbroker-tls-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return make_tls_files(directory, extra_host=container_host)

    @property
    def tls(self) -> TlsFiles:
        """Returns the files for clients of this broker. Raises UserError if it was created without `tls`."""
        if self._tls is None:
            raise UserError("The broker has no TLS: create it with tls=True")
        return self._tls

    # Addresses

    @property
    def bootstrap(self) -> str:
        """Returns HOST:PORT, the bootstrap.servers of clients."""
        return self._expect_running().bootstrap

    @property
    def host(self) -> str:
        return self._expect_running().host

    @property
    def port(self) -> int:
        return self._expect_running().port

    @property
    def container_bootstrap(self) -> str:
        """Returns HOST:PORT for clients in containers. Raises UserError if there is no `container_host`."""
        running = self._expect_running()
        if self._container_host is None:
            raise UserError("The broker has no listener for containers: create it with container_host=…")
        address: str = self._stage.call(lambda: running.advertised(CONTAINERS))
        return address

    # Start and stop

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self) -> Self:
        """Starts the broker. Clients can connect once this returns. A restart uses the same port and data."""
        if self._running is not None:
            raise UserError("The broker is already running")
        self._running = self._stage.start(self._config, self._topics, self.faults, self._clock, self._users, self._tls)
        if not self._has_own_listeners:
            ports = {self._protocol: self._running.port}
            if self._container_host is not None:
                ports[CONTAINERS] = int(self.container_bootstrap.rpartition(":")[2])
            self._config = self._config_with(ports)
        if self._acls:
            self.add_acls(self._acls)
            self._acls = ()  # a restart keeps the ACLs that the test has left
        return self

    def _config_with(self, ports: Mapping[str, int] | None) -> BrokerConfig:
        """Returns the config with these ports; None for free ports."""
        listeners = listener_properties(self._container_host, self._container_bind, ports, protocol=self._protocol)
        names = [self._protocol] if self._container_host is None else [self._protocol, CONTAINERS]
        logins = {} if self._users is None else self._users.properties(names)
        tls = {} if self._tls is None else tls_properties(self._tls, self._client_auth, names)
        return config_for_tests({**listeners, **logins, **tls, **self._properties})

    @property
    def _protocol(self) -> str:
        return protocol_for(has_users=self._users is not None, has_tls=self._tls is not None)

    def client_settings(self, user: str, mechanism: str = "PLAIN") -> dict[str, str]:
        """Returns the settings with which a client logs in as one of the `users`, with the names of librdkafka.

        Mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        """
        settings = self._expect_running().client_settings(user, mechanism)
        return settings if self._tls is None else {**settings, "security.protocol": "SASL_SSL", **self._tls_settings}

    @property
    def _tls_settings(self) -> dict[str, str]:
        settings = self.tls.librdkafka
        del settings["security.protocol"]
        return settings

    def stop(self) -> None:
        """Shuts down cleanly and keeps topics and records for the next `start`. No-op if the broker is not running."""
        self._running = None
        self._stage.stop()

    def close(self) -> None:
        """Stops the broker, and removes the data unless `data_dir` was given. No-op if the broker is already closed."""
        self._running = None
        self._stage.clear()

    # Topics

    @property
    def topics(self) -> list[str]:
        """Returns the names of all topics, including internal topics."""
        running = self._expect_running()
        names: list[str] = self._stage.call(lambda: running.topics)
        return names

    def create_topic(self, name: str, partitions: int = DEFAULT, **configs: Setting) -> None:
        """Creates a topic. Configs have Kafka's names, with underscores for dots.

        Raises UserError if the topic exists or is invalid.
        """
        running = self._expect_running()

        async def create() -> None:
            await running.create_topic(name, partitions, **configs)

        self._stage.run(create)

    def delete_topic(self, name: str) -> None:
        self._stage.run(self._expect_running().delete_topic, name)

    # ACLs

    def add_acls(self, acls: Sequence[str]) -> None:
        """Adds ACLs: lines such as `allow User:ANONYMOUS READ,WRITE topic orders`. `orders-*` is a prefix.

        Raises UserError if a line has another form, or if the broker was created without `acls`.
        """
        self._stage.run(self._expect_running().add_acls, acls)

    def remove_acls(self, acls: Sequence[str]) -> None:
        """Removes ACLs, which have the form of `add_acls`."""
        self._stage.run(self._expect_running().remove_acls, acls)

    # Records

    def produce(self, topic: str, records: Iterable[NewRecord]) -> None:
        """Writes records to a topic, and returns when they are committed.

        A record is a value (str, bytes, None), a pair of key and value, or a KafkaRecord.
        """
        self._stage.run(self._expect_running().produce, topic, records)

    def records(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0, read_committed: bool = True
    ) -> list[KafkaRecord]:
        """Returns the records of a topic, ordered by partition and offset.

        With `count`, waits until there are at least so many, and raises AssertionError after `timeout` seconds.
        """
        running = self._expect_running()

        async def read() -> list[KafkaRecord]:
            return await running.records(topic, count, timeout=timeout, read_committed=read_committed)

        found: list[KafkaRecord] = self._stage.run(read)
        return found

    # Time

    @property
    def now_ms(self) -> int:
        """Returns the time of the broker in milliseconds since the epoch."""
        return self._clock.now_ms()

    def advance_clock(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Advances the broker's clock, and returns when the broker has handled all tasks that are due then.

        For retention, session timeouts, transaction timeouts and all other times that the broker measures. Clients keep
        their own time.
        """
        self._expect_running()
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._stage.run(self._clock.advance, step // timedelta(milliseconds=1))

    def _expect_running(self) -> RunningBroker:
        if self._running is None:
            raise UserError("The broker is not running: use it in a `with` block, or call start()")
        return self._running


class _Stage:
    """Thread and data directory of a Broker.

    It holds no reference to the Broker, so that the finalizer can clean up after a Broker that was never closed.
    """

    def __init__(self, data_dir: str | None) -> None:
        self._data_dir = data_dir
        self._temporary: str | None = None
        self._thread: LoopThread | None = None
        self._process_id = os.getpid()

    def start(
        self,
        config: BrokerConfig,
        topics: list[tuple[str, int]],
        faults: Faults,
        clock: BrokerClock,
        users: BrokerUsers | None,
        tls: TlsFiles | None,
    ) -> RunningBroker:
        if self._data_dir is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="kbroker-")
        thread = LoopThread(config, self._data_dir or self._temporary or "", topics, faults, clock, users, tls)
        running = thread.start()
        self._thread = thread
        return running

    def call(self, function: Callable[[], Any]) -> Any:
        return function() if self._thread is None else self._thread.call(function)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        assert self._thread is not None
        return self._thread.run(function, *arguments)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def clear(self) -> None:
        if os.getpid() != self._process_id:
            return  # A forked child process: the thread and the data belong to the parent.
        try:
            self.stop()
        finally:
            temporary, self._temporary = self._temporary, None
            if temporary is not None:
                with suppress(FileNotFoundError):
                    shutil.rmtree(temporary)
