"""TLS with stock clients: what works and what fails is the same on kbroker and on Apache Kafka."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.apache_kafka import API_VERSIONS_V0, JavaTools, run_apache_kafka
from compat_tests.process import free_ports, run_kbroker
from tests.security.certificates import Authority

PATIENCE_S = 30.0


class SecuredBroker(NamedTuple):
    """A broker with a listener that needs no client certificate, and one that demands it."""

    open: str
    strict: str
    authority: Authority
    other: Authority


@pytest.fixture(scope="module")
def secured(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    if broker_name not in ("kbroker", "apache-kafka"):
        pytest.skip("the broker of --bootstrap has no certificates of this test")
    directory = tmp_path_factory.mktemp("tls")
    authority, other = Authority(directory / "authority"), Authority(directory / "other", "another authority")
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
        yield SecuredBroker(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", authority, other)


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


def first_error(settings: dict[str, str]) -> KafkaError:
    """Returns the first error of a client that cannot connect."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    for _ in range(600):
        found = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
        if found:
            return found[0]
        producer.poll(0.05)
    pytest.fail("the client has seen no error")


def test_librdkafka_with_and_without_a_certificate(secured: SecuredBroker, topic: str) -> None:
    expected = [b"%d" % number * 3000 for number in range(100)]
    assert write_and_read(librdkafka(secured.open, secured.authority), f"{topic}-open") == expected
    certificate = secured.authority.pem("client", hosts=())
    strict = librdkafka(secured.strict, secured.authority, certificate)
    assert write_and_read(strict, f"{topic}-strict") == expected


def test_librdkafka_with_another_authority(secured: SecuredBroker) -> None:
    error = first_error(librdkafka(secured.open, secured.other))
    assert error.code() in (KafkaError._TRANSPORT, KafkaError._SSL)  # which one depends on the time of the alert
    assert "certificate verify failed" in error.str()


@pytest.mark.parametrize("kind", ["missing", "expired", "unknown"])
def test_librdkafka_without_a_valid_certificate(secured: SecuredBroker, kind: str) -> None:
    certificate = {
        "missing": lambda: None,
        "expired": lambda: secured.authority.pem("expired", hosts=(), age_days=20, days=10),
        "unknown": lambda: secured.other.pem("unknown", hosts=()),
    }[kind]()
    error = first_error(librdkafka(secured.strict, secured.authority, certificate))
    assert error.code() in (KafkaError._TRANSPORT, KafkaError._SSL)
    assert "alert" in error.str(), error.str()


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


def test_kafka_python(secured: SecuredBroker, topic: str) -> None:
    certificate = secured.authority.pem("python", hosts=())
    settings = {
        "bootstrap_servers": secured.strict,
        "security_protocol": "SSL",
        "ssl_cafile": secured.authority.file,
        "ssl_certfile": certificate,
        "ssl_keyfile": certificate,
    }
    producer = KafkaProducer(**settings)
    producer.send(topic, b"x" * 100_000).get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **settings)
    assert next(consumer).value == b"x" * 100_000
    consumer.close()


def test_kcat(secured: SecuredBroker, topic: str) -> None:
    command = shutil.which("kcat")
    if command is None:
        pytest.skip("needs kcat: it is not on the PATH")
    options = ["-b", secured.open, "-X", "security.protocol=SSL", "-X", f"ssl.ca.location={secured.authority.file}"]
    subprocess.run([command, *options, "-P", "-t", topic, "-p", "0"], input=b"tea\n", check=True, timeout=PATIENCE_S)
    read = subprocess.run(
        [command, *options, "-C", "-t", topic, "-p", "0", "-e", "-q"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert read.stdout == b"tea\n"


def java_properties(secured: SecuredBroker, path: Path, authority: Authority, certificate: str | None) -> str:
    lines = ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={authority.file}"]
    if certificate is not None:
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={certificate}"]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.jvm
def test_java_with_and_without_a_certificate(
    secured: SecuredBroker, java_tools: JavaTools, topic: str, tmp_path: Path
) -> None:
    certificate = secured.authority.pem("java", hosts=())
    for bootstrap, given in ((secured.open, None), (secured.strict, certificate)):
        config = java_properties(secured, tmp_path / "client.properties", secured.authority, given)
        java_tools.console_producer(bootstrap, topic, b"tea\n", "--producer.config", config)
    config = java_properties(secured, tmp_path / "client.properties", secured.authority, certificate)
    options = ["--partition", "0", "--offset", "earliest", "--max-messages", "2", "--consumer.config", config]
    assert java_tools.console_consumer(secured.strict, topic, *options) == "tea\ntea\n"


@pytest.mark.jvm
@pytest.mark.parametrize("kind", ["another authority", "no certificate"])
def test_java_fails_with_a_handshake_error(
    secured: SecuredBroker, java_tools: JavaTools, tmp_path: Path, kind: str
) -> None:
    authority = secured.other if kind == "another authority" else secured.authority
    config = java_properties(secured, tmp_path / "client.properties", authority, None)
    with pytest.raises(AssertionError) as failed:
        java_tools.run(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            secured.strict,
            "--command-config",
            config,
            "--list",
        )
    assert "SslAuthenticationException" in str(failed.value)
