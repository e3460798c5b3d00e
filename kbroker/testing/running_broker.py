"""A broker in the trio loop of its user, on a free port of the loopback interface."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

import trio

from kbroker.client.address import Address
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
from kbroker.testing.lone_exceptions import lone_exceptions
from kbroker.testing.settings import (
    Acls,
    Setting,
    Topics,
    acl_properties,
    config_for_tests,
    properties_of,
    topics_of,
    warn_about,
)
from kbroker.web.monitor import run_monitored_broker

__all__ = ["Bootstrap", "RunningBroker", "run_broker", "running_broker", "running_with"]


class RunningBroker:
    """A broker that runs in the current trio loop, and its interceptor."""

    def __init__(self, faults: Faults | None = None, clock: Clock | None = None) -> None:
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

        Raises UserError for another line, or if the broker has no authorizer.
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
        await produce(Address(self.host, self.port), topic, records, self._clock.now_ms())

    async def records(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0, read_committed: bool = True
    ) -> list[KafkaRecord]:
        """Returns the records of a topic, ordered by partition and offset.

        With `count`, waits until there are at least so many, and raises AssertionError after `timeout` seconds.
        """
        self._running()
        address = Address(self.host, self.port)
        return await read_records(address, topic, count, timeout=timeout, read_committed=read_committed)

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
    **settings: Setting,
) -> AsyncIterator[Bootstrap]:
    """Runs a broker and yields its HOST:PORT. Settings have Kafka's names, with underscores for dots.

    `acls`: lines as for `RunningBroker.add_acls`; the broker then has an authorizer. Without `data_dir`, the data is
    removed on exit.
    """
    config = config_for_tests({**acl_properties(acls), **properties_of(settings)})
    warn_about(config, stacklevel=3)
    with tempfile.TemporaryDirectory(prefix="kbroker-") as temporary, lone_exceptions():
        async with running_with(config, data_dir or temporary, topics_of(topics)) as broker:
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
) -> AsyncIterator[RunningBroker]:
    broker = RunningBroker(faults, clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker._run, config, os.fspath(data_dir), topics)
        try:
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                await broker.stop()
