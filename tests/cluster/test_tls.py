"""Three kbrokers with TLS between them and to clients, each with its own certificate."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.security.certificates import Authority

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"


def settings(authority: Authority, broker_id: int, *more: str) -> list[str]:
    return [
        f"ssl.keystore.location={authority.pem(f'broker{broker_id}')}",
        f"ssl.truststore.location={authority.file}",
        "ssl.client.auth=required",
        "security.inter.broker.protocol=SSL",
        *more,
    ]


def client_settings(authority: Authority) -> dict[str, str]:
    certificate = authority.pem("client", hosts=())
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "ssl.certificate.location": certificate,
        "ssl.key.location": certificate,
    }


async def create(cluster: RunningCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **cluster.client_settings})
    futures = admin.create_topics([NewTopic(TOPIC, 3, 3, config={"min.insync.replicas": "2"})])
    await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))


async def all_in_sync(cluster: RunningCluster, brokers: list[int]) -> None:
    await cluster.until_agreed(
        lambda _controller, live, topics: (
            live == brokers
            and TOPIC in topics
            and all(isr == brokers for _leader, isr in topics[TOPIC].values())
            and all(leader in brokers for leader, _isr in topics[TOPIC].values())
        )
    )


def produce(cluster: RunningCluster, values: list[bytes]) -> None:
    errors: list[object] = []

    def note(error: object, _message: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 0,
            **cluster.client_settings,
        }
    )
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 3, on_delivery=note)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert errors == []


def read(cluster: RunningCluster, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", "log_level": 0, **cluster.client_settings}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(3)])
        return sorted(message.value() or b"" for message in consumer.consume(count, TIMEOUT_SECONDS))
    finally:
        consumer.close()


async def test_a_cluster_replicates_and_survives_its_brokers_with_tls(zookeeper: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    values = sorted(os.urandom(20_000) for _ in range(60))
    async with running_cluster(
        zookeeper, tmp_path, 3, lambda broker_id: settings(authority, broker_id), protocol="SSL"
    ) as cluster:
        cluster.client_settings = client_settings(authority)
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
        await create(cluster)
        await all_in_sync(cluster, [1, 2, 3])
        await trio.to_thread.run_sync(produce, cluster, values[:30])
        registered = await trio.to_thread.run_sync(registration, cluster.connect, 1)
        assert registered["listener_security_protocol_map"] == {"SSL": "SSL"}
        assert registered["endpoints"] == [f"SSL://127.0.0.1:{cluster.brokers[1].port}"]
        assert (registered["host"], registered["port"]) == (None, -1)
        await cluster.brokers[2].kill()
        await all_in_sync(cluster, [1, 3])
        await trio.to_thread.run_sync(produce, cluster, values[30:])
        await cluster.start(2, *settings(authority, 2))
        await all_in_sync(cluster, [1, 2, 3])
        await cluster.brokers[1].kill()
        await all_in_sync(cluster, [2, 3])
        assert await trio.to_thread.run_sync(read, cluster, 60) == values


def registration(connect: str, broker_id: int) -> dict[str, object]:
    client = KazooClient(connect)
    client.start()
    try:
        found: dict[str, object] = json.loads(client.get(f"/brokers/ids/{broker_id}")[0])
        return found
    finally:
        client.stop()
        client.close()


async def test_a_broker_that_would_not_trust_itself_does_not_start(zookeeper: str, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "certificates"), Authority(tmp_path / "other")
    cluster = RunningCluster(f"{zookeeper}/distrust", tmp_path, "SSL")
    wrong = [*settings(authority, 1), f"ssl.truststore.location={other.file}"]
    with pytest.raises(AssertionError, match="it ended before it was ready") as ended:
        await cluster.start(1, *wrong)
    await cluster.brokers[1].process.wait()
    assert "can't connect to a server SSLEngine created with those settings" in str(ended.value)
