"""TLS listeners with and without client certificates. `test_secured_clients.py` has other clients, and their errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.apache_kafka import API_VERSIONS_V0, JavaTools, run_apache_kafka
from compat_tests.process import free_ports, run_kbroker
from tests.security.certificates import Authority

PATIENCE_S = 30.0


class SecuredBroker(NamedTuple):
    """A broker with a listener that needs no client certificate, and one that demands it."""

    open: str
    strict: str
    authority: Authority


@pytest.fixture(scope="module")
def secured(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    if broker_name not in ("kbroker", "apache-kafka"):
        pytest.skip("the broker of --bootstrap has no certificates of this test")
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory / "authority")
    ports = free_ports(2)
    secured_listeners = f"OPEN://127.0.0.1:{ports[0]},STRICT://127.0.0.1:{ports[1]}"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.pem("broker"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.file,
        "listener.name.strict.ssl.client.auth": "required",
    }
    with ExitStack() as stack:
        if broker_name == "kbroker":
            properties["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,OPEN:SSL,STRICT:SSL"
            properties["listeners"] = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]},{secured_listeners}"
            settings = [part for pair in properties.items() for part in ("--set", "=".join(pair))]
            data = ["--data-dir", str(directory / "data")]
            stack.enter_context(run_kbroker(directory, *data, *settings, listen=False))
        else:
            properties["listener.security.protocol.map"] = (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OPEN:SSL,STRICT:SSL"
            )
            plain = "PLAINTEXT://127.0.0.1:{port}"
            properties["listeners"] = f"{plain},CONTROLLER://127.0.0.1:{{controller_port}},{secured_listeners}"
            properties["advertised.listeners"] = f"{plain},{secured_listeners}"
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            tools: JavaTools = request.getfixturevalue("java_tools")
            stack.enter_context(run_apache_kafka(tools, directory, text))
        yield SecuredBroker(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", authority)


def librdkafka(bootstrap: str, authority: Authority, certificate: str | None = None) -> dict[str, str]:
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "log_level": "0",
    }
    if certificate is not None:
        settings |= {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    return settings


def write_and_read(settings: dict[str, str], topic: str) -> list[bytes | None]:
    producer = Producer(settings)
    for number in range(100):
        producer.produce(topic, b"%d" % number * 3000, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": "none"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(100, PATIENCE_S)]
    finally:
        consumer.close()


def test_librdkafka_with_and_without_a_certificate(secured: SecuredBroker, topic: str) -> None:
    expected = [b"%d" % number * 3000 for number in range(100)]
    assert write_and_read(librdkafka(secured.open, secured.authority), f"{topic}-open") == expected
    certificate = secured.authority.pem("client", hosts=())
    strict = librdkafka(secured.strict, secured.authority, certificate)
    assert write_and_read(strict, f"{topic}-strict") == expected


def test_a_plaintext_client_gets_an_alert(secured: SecuredBroker) -> None:
    """Clients of Kafka recognise its first bytes in the place of a length, and tell the user of TLS."""
    host, _, port = secured.open.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(API_VERSIONS_V0)
        received = b""
        while chunk := connection.recv(100):
            received += chunk
    assert received[:5] == bytes.fromhex("15 0303 0002")
    assert len(received) == 7
