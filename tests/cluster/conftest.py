"""Clusters of kbroker processes, with a real ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.process import free_ports
from tests.broker.child import ChildBroker, spawn
from tests.controller.conftest import secured_zookeeper, zookeeper

__all__ = ["RunningCluster", "secured_zookeeper", "zookeeper"]

TIMEOUT_SECONDS = 60.0  # on a busy machine an Apache Kafka needs half of it to start
SESSION_MS = 3_000  # of the brokers that a test kills; a busy machine must not end the sessions of others
LONG_SESSION_MS = 18_000

_chroots = itertools.count()


class RunningCluster:
    def __init__(self, connect: str, directory: Path, protocol: str = "PLAINTEXT") -> None:
        self.connect = connect
        self.directory = directory
        self.protocol = protocol
        self.client_settings: dict[str, str] = {}
        """Further settings of librdkafka, for a cluster that is secured."""
        self.brokers: dict[int, ChildBroker] = {}

    async def start(self, broker_id: int, *settings: str, more_dirs: Sequence[Path] = ()) -> ChildBroker:
        known = self.brokers.get(broker_id)
        properties = [
            f"broker.id={broker_id}",
            f"zookeeper.connect={self.connect}",
            f"zookeeper.session.timeout.ms={SESSION_MS}",
            f"zookeeper.connection.timeout.ms={int(1000 * TIMEOUT_SECONDS)}",  # otherwise that of the session
            "offsets.topic.num.partitions=3",
            "transaction.state.log.num.partitions=3",
            "default.replication.factor=3",
            *settings,
        ]
        arguments = [part for setting in properties for part in ("--set", setting)]
        port = free_ports(1)[0] if known is None else known.port  # a restarted broker keeps its port
        listeners = f"{self.protocol}://127.0.0.1:{port}"
        child = await spawn(self.directory / str(broker_id), *arguments, more_dirs=more_dirs, listeners=listeners)
        self.brokers[broker_id] = child
        await child.wait_ready()
        return child

    @property
    def alive(self) -> dict[int, ChildBroker]:
        return {broker_id: broker for broker_id, broker in self.brokers.items() if broker.process.returncode is None}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.alive.values())

    async def metadata(self, broker_id: int) -> Any:
        """Returns the metadata that librdkafka reads from this broker."""
        address = f"127.0.0.1:{self.brokers[broker_id].port}"

        def read() -> Any:
            while True:
                admin = AdminClient({"bootstrap.servers": address, "log_level": 0, **self.client_settings})
                found = admin.list_topics(timeout=TIMEOUT_SECONDS)
                # A client that has heard of the other brokers may ask any of them.
                if f"{address}/" in str(found.orig_broker_name):
                    return found

        return await trio.to_thread.run_sync(read)

    async def seen_by(self, broker_id: int) -> tuple[object, ...]:
        found = await self.metadata(broker_id)
        topics = {
            name: {index: (partition.leader, sorted(partition.isrs)) for index, partition in topic.partitions.items()}
            for name, topic in found.topics.items()
        }
        return found.controller_id, sorted(found.brokers), topics

    async def until_agreed(self, condition: Callable[[int, list[int], dict[str, Any]], bool]) -> Any:
        """Waits until all live brokers return equal metadata and the condition holds for it."""
        seen: list[Any] = []
        with trio.move_on_after(TIMEOUT_SECONDS):
            while True:
                try:
                    seen = [await self.seen_by(broker_id) for broker_id in self.alive]
                except KafkaException:  # a broker that is still starting
                    continue
                if all(view == seen[0] for view in seen) and condition(*seen[0]):
                    return seen[0]
        pytest.fail(f"they do not agree: {seen}")

    def log(self) -> str:
        return "\n".join(f"broker {broker_id}:\n{broker.stderr}" for broker_id, broker in self.brokers.items())


@asynccontextmanager
async def running_cluster(
    zookeeper: str,
    directory: Path,
    size: int,
    settings: Callable[[int], Sequence[str]] = lambda broker_id: (),
    *,
    protocol: str = "PLAINTEXT",
) -> AsyncIterator[RunningCluster]:
    """`settings`: further properties of a broker. `protocol`: security protocol of all brokers and clients."""
    cluster = RunningCluster(f"{zookeeper}/cluster-{next(_chroots)}", directory, protocol)
    try:
        async with trio.open_nursery() as nursery:
            for broker_id in range(1, size + 1):
                nursery.start_soon(cluster.start, broker_id, *settings(broker_id))
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            for broker in cluster.alive.values():
                await broker.kill()


@pytest.fixture
def session_ms() -> int:
    return SESSION_MS


all_brokers_live = pytest.mark.parametrize("session_ms", [LONG_SESSION_MS])
"""For tests that kill no broker and expect that no leader changes."""


@pytest.fixture
async def three(zookeeper: str, tmp_path: Path, session_ms: int) -> AsyncIterator[RunningCluster]:
    """Returns three brokers that know each other: a topic with three replicas can be created."""

    def settings(_broker_id: int) -> list[str]:
        return [f"zookeeper.session.timeout.ms={session_ms}"]

    async with running_cluster(zookeeper, tmp_path, 3, settings) as cluster:
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
        yield cluster
