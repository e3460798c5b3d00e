"""Clusters whose brokers log in at each other with SCRAM: three kbrokers, and a kbroker beside an Apache Kafka 3.9.

A kbroker and an Apache Kafka share delegation tokens too.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import admin as confluent_admin

from kbroker.client.address import Address
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.delegation_tokens import IssuedToken, create_token, describe_tokens, expire_token, renew_token
from kbroker.client.failures import LoginFailed
from kbroker.security.client_login import ClientLogin, login_of_user
from kbroker.security.delegation_token import DelegationToken, token_password
from tests.cluster.apache_kafka import start_kafka
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster

pytestmark = pytest.mark.jvm

confluent: Any = confluent_admin

MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"broker": "b-secret", "alice": "a-secret"}
# The listener keeps the name that RunningCluster gives it.
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "offsets.topic.replication.factor": "1",
    "delegation.token.secret.key": "key-of-all-brokers",
    "delegation.token.expiry.check.interval.ms": "1000",
    f"listener.name.plaintext.{MECHANISM.lower()}.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="broker" password="{PASSWORDS["broker"]}";'
    ),
}


def settings_of(cluster: RunningCluster, user: str = "alice", password: str | None = None) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user] if password is None else password,
        "log_level": "0",
    }


@pytest.fixture
async def secured(zookeeper: str, tmp_path: Path) -> AsyncIterator[RunningCluster]:
    """A cluster without brokers, whose tree has the users."""
    cluster = RunningCluster(f"{zookeeper}/sasl-{uuid.uuid4().hex[:8]}", tmp_path)
    for user, password in PASSWORDS.items():
        command = [sys.executable, "-m", "kbroker", "users", "add", user, "--zookeeper", cluster.connect]
        await trio.run_process(command, env={**os.environ, "KBROKER_USER_PASSWORD": password}, capture_stdout=True)
    yield cluster
    with trio.CancelScope(shield=True):
        for broker in cluster.alive.values():
            await broker.kill()


async def start(cluster: RunningCluster, broker_id: int) -> None:
    await cluster.start(broker_id, *(f"{name}={text}" for name, text in SETTINGS.items()))


async def create_topic(cluster: RunningCluster, name: str, replicas: int) -> None:
    admin = confluent.AdminClient(settings_of(cluster))

    def create() -> None:
        admin.create_topics([confluent.NewTopic(name, 2, replicas)])[name].result(TIMEOUT_SECONDS)

    def count_brokers() -> int:
        return len(admin.list_topics(timeout=TIMEOUT_SECONDS).brokers)

    def is_replicated() -> bool:
        partitions = admin.list_topics(name, timeout=TIMEOUT_SECONDS).topics[name].partitions.values()
        return bool(partitions) and all(len(partition.isrs) == replicas for partition in partitions)

    with trio.fail_after(TIMEOUT_SECONDS):
        while await trio.to_thread.run_sync(count_brokers) < replicas:
            pass
        await trio.to_thread.run_sync(create)
        while not await trio.to_thread.run_sync(is_replicated):
            pass


def write_and_read(cluster: RunningCluster, topic: str, count: int = 100) -> set[bytes]:
    producer = Producer({**settings_of(cluster), "acks": "all"})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    consumer = Consumer({**settings_of(cluster), "group.id": "readers", "auto.offset.reset": "earliest"})
    found: set[bytes] = set()
    try:
        consumer.subscribe([topic])
        for message in iter(lambda: consumer.poll(TIMEOUT_SECONDS), None):
            assert message.error() is None
            found.add(message.value() or b"")
            if len(found) == count:
                break
    finally:
        consumer.close()
    return found


async def test_three_brokers_log_in_at_each_other(secured: RunningCluster) -> None:
    async with trio.open_nursery() as nursery:
        for broker_id in (1, 2, 3):
            nursery.start_soon(start, secured, broker_id)
    await create_topic(secured, "orders", 3)
    found = await trio.to_thread.run_sync(write_and_read, secured, "orders")
    assert found == {b"%d" % number for number in range(100)}
    for broker in secured.brokers.values():
        assert "Failed authentication" not in broker.stderr


async def test_a_new_user_can_log_in_at_every_broker(secured: RunningCluster) -> None:
    async with trio.open_nursery() as nursery:
        for broker_id in (1, 2):
            nursery.start_soon(start, secured, broker_id)
    admin = confluent.AdminClient(settings_of(secured))
    change = confluent.UserScramCredentialUpsertion(
        "bob", confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_512, 8192), b"b0b"
    )
    await trio.to_thread.run_sync(lambda: admin.alter_user_scram_credentials([change])["bob"].result(TIMEOUT_SECONDS))
    for broker in secured.brokers.values():
        settings = {
            **settings_of(secured, "alice"),
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "sasl.username": "bob",
            "sasl.password": "b0b",
        }
        with trio.fail_after(TIMEOUT_SECONDS):
            while True:  # the notification takes a moment
                try:
                    client = confluent.AdminClient(settings)
                    await trio.to_thread.run_sync(lambda client=client: client.list_topics(timeout=5))  # type: ignore[misc]
                    break
                except KafkaException:
                    continue


@asynccontextmanager
async def client_of(cluster: RunningCluster, broker_id: int, login: ClientLogin) -> AsyncIterator[Cluster]:
    """Returns a client that knows this broker only."""
    address = Address("127.0.0.1", cluster.brokers[broker_id].port)
    async with open_cluster([address], security=ConnectionSecurity(login, None)) as client:
        yield client


async def tokens_at(client: Cluster) -> dict[str, DelegationToken]:
    return {issued.token.token_id: issued.token for issued in await describe_tokens(client)}


async def until_known(client: Cluster, token: DelegationToken) -> None:
    """Waits until the broker has seen the announcement."""
    with trio.fail_after(TIMEOUT_SECONDS):
        while True:
            if (await tokens_at(client)).get(token.token_id) == token:
                return
            await trio.sleep(0.05)


async def until_unknown(client: Cluster, token_id: str) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while True:
            if token_id not in await tokens_at(client):
                return
            await trio.sleep(0.05)


def login_with(issued: IssuedToken) -> ClientLogin:
    password = token_password(issued.hmac)
    return login_of_user(MECHANISM, user=issued.token.token_id, password=password, source="test", is_token=True)


async def share_tokens(cluster: RunningCluster) -> None:
    """Creates, renews and expires tokens at both brokers, and logs in with them at the other one."""
    alice = login_of_user(MECHANISM, user="alice", password=PASSWORDS["alice"], source="test")
    async with client_of(cluster, 1, alice) as ours, client_of(cluster, 2, alice) as theirs:
        for here, there, other_id in ((ours, theirs, 2), (theirs, ours, 1)):
            issued = await create_token(here, renewers=["User:bob*/x"])
            await until_known(there, issued.token)
            async with client_of(cluster, other_id, login_with(issued)) as owner:
                await owner.refresh([])
            renewed = issued.token._replace(expiry_ms=await renew_token(there, issued, 2 * 86_400_000))
            assert renewed.expiry_ms > issued.token.expiry_ms
            await until_known(here, renewed)
            await expire_token(there, issued)
            await until_unknown(here, issued.token.token_id)
            with pytest.raises(LoginFailed):
                async with client_of(cluster, other_id, login_with(issued)) as owner:
                    await owner.refresh([])
            # The controller, whichever broker it is, deletes it.
            short = await create_token(here, lifetime_ms=1)
            await until_unknown(there, short.token.token_id)


async def test_a_kbroker_and_an_apache_kafka_share_users_tokens_and_replicas(
    secured: RunningCluster, judge39_classpath: str, java: str, tmp_path: Path
) -> None:
    kafka_settings = {
        **SETTINGS,
        "log.dirs": tmp_path / "kafka-data",
        "offsets.topic.num.partitions": 3,
        "zookeeper.session.timeout.ms": 6000,
    }
    await start(secured, 1)
    await start_kafka(secured, 2, kafka_settings, classpath=judge39_classpath, java=java, home=tmp_path / "kafka")
    await create_topic(secured, "orders", 2)
    found = await trio.to_thread.run_sync(write_and_read, secured, "orders")
    assert found == {b"%d" % number for number in range(100)}
    await share_tokens(secured)
