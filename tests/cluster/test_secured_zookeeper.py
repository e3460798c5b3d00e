"""A kbroker and an Apache Kafka 3.9 in a cluster in which everything is secured: clients, brokers and ZooKeeper.

Both create nodes with `zookeeper.set.acl=true`, and both change the nodes of the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.cluster.apache_kafka import start_kafka
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster
from tests.cluster.test_tls import TOPIC, all_in_sync, client_settings, produce, read
from tests.controller.conftest import SecuredZooKeeper
from tests.security.certificates import Authority

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

KBROKER, KAFKA = 1, 2
MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"broker": "b-secret", "alice": "a-secret"}


@dataclass
class Pair:
    """A kbroker and an Apache Kafka with the same properties."""

    cluster: RunningCluster
    classpath: str
    java: str
    authority: Authority
    settings: Mapping[str, str]
    only_kbroker: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ()

    def properties(self, broker_id: int) -> dict[str, str]:
        return {
            "ssl.keystore.location": self.authority.pem(f"broker{broker_id}"),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "ssl.truststore.type": "PEM",
            "security.inter.broker.protocol": self.cluster.protocol,
            "offsets.topic.replication.factor": "2",
            "zookeeper.connection.timeout.ms": "30000",
            "zookeeper.session.timeout.ms": "6000",
            "zookeeper.set.acl": "true",
            **self.settings,
        }

    async def start(self, broker_id: int) -> None:
        properties = self.properties(broker_id)
        if broker_id == KBROKER:
            await self.cluster.start(
                KBROKER, *(f"{name}={v}" for name, v in {**properties, **self.only_kbroker}.items())
            )
            return
        home = self.cluster.directory / "kafka"
        more = {"log.dirs": home / "data", "offsets.topic.num.partitions": 3}
        await start_kafka(
            self.cluster,
            KAFKA,
            {**properties, **more},
            classpath=self.classpath,
            java=self.java,
            home=home,
            options=self.java_options,
        )

    @asynccontextmanager
    async def running(self, first: int, second: int) -> AsyncIterator[None]:
        """Starts one after the other: the first one creates the nodes that both use, and is the controller."""
        try:
            await self.start(first)
            await self.cluster.until_agreed(lambda controller, live, _t: controller == first and live == [first])
            await self.start(second)
            await self.cluster.until_agreed(lambda _c, live, _t: live == [KBROKER, KAFKA])
            yield
        finally:
            with trio.CancelScope(shield=True):
                for broker in self.cluster.alive.values():
                    await broker.kill()

    async def create_topic(self) -> None:
        admin = AdminClient(
            {"bootstrap.servers": self.cluster.bootstrap, "log_level": 0, **self.cluster.client_settings}
        )
        futures = admin.create_topics([NewTopic(TOPIC, 3, 2)])
        await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))

    async def replicates_in_both_directions(self) -> None:
        """Takes one broker away, then the other one. Each has what was written to the other, and is the controller."""
        values = sorted(os.urandom(20_000) for _ in range(60))
        await self.create_topic()
        await all_in_sync(self.cluster, [KBROKER, KAFKA])
        _c, _b, topics = await self.cluster.until_agreed(lambda _c, _b, topics: TOPIC in topics)
        assert {leader for leader, _isr in topics[TOPIC].values()} == {KBROKER, KAFKA}
        await trio.to_thread.run_sync(produce, self.cluster, values[:20])
        assert await self.cluster.brokers[KBROKER].terminate() == 0
        await self.leads_alone(KAFKA)
        await trio.to_thread.run_sync(produce, self.cluster, values[20:40])
        assert await trio.to_thread.run_sync(read, self.cluster, 40) == sorted(values[:40])
        await self.start(KBROKER)
        await all_in_sync(self.cluster, [KBROKER, KAFKA])
        await self.cluster.brokers[KAFKA].kill()
        await self.leads_alone(KBROKER)
        await trio.to_thread.run_sync(produce, self.cluster, values[40:])
        assert await trio.to_thread.run_sync(read, self.cluster, 60) == values

    async def leads_alone(self, broker_id: int) -> None:
        """Waits until the broker is the controller: it has written nodes that the other one has created."""
        await all_in_sync(self.cluster, [broker_id])
        await self.cluster.until_agreed(lambda controller, _b, _t: controller == broker_id)


@contextmanager
def seen_from_outside(zookeeper: SecuredZooKeeper, cluster: RunningCluster) -> Iterator[KazooClient]:
    """A client that has no certificate and no login."""
    client = KazooClient(zookeeper.plain + "/" + cluster.connect.partition("/")[2])
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def check_nodes(outside: KazooClient, identity: tuple[str, str]) -> None:
    """Every node belongs to the identity of the brokers, whichever of them has created it."""
    secret, checked = ("/config/users", "/config/brokers"), 0
    for path in nodes(outside, "/", secret):
        found = {(acl.id.scheme, acl.id.id, *acl.acl_list) for acl in outside.get_acls(path)[0]}
        expected = {("world", "anyone", "READ"), (*identity, "ALL")}
        assert found == ({("world", "anyone", "ALL")} if path == "/consumers" else expected), path
        checked += 1
    assert checked > 25
    for path in secret:
        with pytest.raises(NoAuthError):
            outside.get(path)
    with pytest.raises(NoAuthError):
        outside.set("/brokers/topics", b"")


def nodes(client: KazooClient, path: str, secret: Sequence[str]) -> Iterator[str]:
    yield path
    for child in client.get_children(path):
        below = f"{path.rstrip('/')}/{child}"
        if below not in secret:
            yield from nodes(client, below, secret)


@pytest.mark.parametrize(("first", "second"), [(KBROKER, KAFKA), pytest.param(KAFKA, KBROKER, marks=pytest.mark.long)])
async def test_brokers_with_certificates(
    secured_zookeeper: SecuredZooKeeper, java: str, judge39_classpath: str, tmp_path: Path, first: int, second: int
) -> None:
    authority = secured_zookeeper.authority
    cluster = RunningCluster(f"{secured_zookeeper.address}/certificates-{first}", tmp_path, "SSL")
    cluster.client_settings = client_settings(authority)
    settings = {"ssl.client.auth": "required", **secured_zookeeper.tls(authority.pem("kafka"))}
    pair = Pair(cluster, judge39_classpath, java, authority, settings)
    async with pair.running(first, second):
        await pair.replicates_in_both_directions()
        with seen_from_outside(secured_zookeeper, cluster) as outside:
            await trio.to_thread.run_sync(check_nodes, outside, ("x509", "CN=kafka,O=acme"))


@pytest.mark.long
async def test_brokers_with_logins(
    secured_zookeeper: SecuredZooKeeper, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    authority = secured_zookeeper.authority
    cluster = RunningCluster(f"{secured_zookeeper.address}/logins", tmp_path, "SASL_SSL")
    cluster.client_settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": MECHANISM,
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }
    settings = {
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="broker" password="{PASSWORDS["broker"]}";'
        ),
        **secured_zookeeper.tls(),
    }
    login = {"kbroker.zookeeper.jaas.file": secured_zookeeper.jaas_file}
    option = f"-Djava.security.auth.login.config={secured_zookeeper.jaas_file}"
    pair = Pair(cluster, judge39_classpath, java, authority, settings, login, [option])
    properties = tmp_path / "server.properties"
    lines = {**pair.properties(KBROKER), **login}
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    for user, password in PASSWORDS.items():
        command = [sys.executable, "-m", "kbroker", "users", "add", user, "--zookeeper", cluster.connect]
        await trio.run_process(
            [*command, "--zookeeper-config", str(properties)],
            env={**os.environ, "KBROKER_USER_PASSWORD": password},
            capture_stdout=True,
        )
    async with pair.running(KBROKER, KAFKA):
        await pair.replicates_in_both_directions()
        with seen_from_outside(secured_zookeeper, cluster) as outside:
            await trio.to_thread.run_sync(check_nodes, outside, ("sasl", "kafka"))


async def test_a_broker_with_another_identity_does_not_start(
    secured_zookeeper: SecuredZooKeeper, tmp_path: Path
) -> None:
    authority = secured_zookeeper.authority
    cluster = RunningCluster(f"{secured_zookeeper.address}/identities", tmp_path)

    async def start(broker_id: int, certificate: str) -> None:
        properties = {
            "zookeeper.connection.timeout.ms": "30000",
            "zookeeper.session.timeout.ms": "6000",
            "zookeeper.set.acl": "true",
            **secured_zookeeper.tls(authority.pem(certificate)),
        }
        await cluster.start(broker_id, *(f"{name}={text}" for name, text in properties.items()))

    await start(1, "kafka")
    with pytest.raises(AssertionError, match="it ended before it was ready") as ended:
        await start(2, "other")
    await cluster.brokers[1].kill()
    assert await cluster.brokers[2].process.wait() == 1
    assert "\nkbroker: ZooKeeper denies access to /config/" in str(ended.value)
    assert "Traceback" not in str(ended.value)
