"""SASL_SSL and ACLs: stock clients with every mechanism, and the errors that they show when something is missing."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import admin as confluent_admin

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import free_ports, running, wait_until
from compat_tests.scenarios.test_sasl import (
    DEADLINE_S,
    GENERAL,
    MECHANISMS,
    OAUTHBEARER,
    PACKAGE,
    PASSWORD,
    PLAIN,
    SHA_512,
    WITH_PASSWORD,
    add_scram_user,
    unsigned_token,
)
from tests.security.certificates import Authority

confluent: Any = confluent_admin

LISTENERS = "PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{ports[0]},EXPIRED://127.0.0.1:{ports[1]}{controller}"
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,EXPIRED:SASL_SSL"
USERS = rf'{PACKAGE}.plain.PlainLoginModule required user_alice="s3cret \\"quoted\\" \\\\ ;"'
LISTENER = "listener.name.sasl_ssl"
SETTINGS = rf"""
listeners={LISTENERS}
advertised.listeners={LISTENERS.replace("{controller}", "")}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms={",".join(MECHANISMS)}
listener.name.expired.sasl.enabled.mechanisms=PLAIN
listener.name.expired.plain.sasl.jaas.config={USERS};
{LISTENER}.plain.sasl.jaas.config={USERS};
{LISTENER}.scram-sha-256.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
{LISTENER}.scram-sha-512.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
{LISTENER}.oauthbearer.sasl.jaas.config={PACKAGE}.oauthbearer.OAuthBearerLoginModule required \
  unsecuredLoginStringClaim_sub="broker";
{LISTENER}.oauthbearer.sasl.server.callback.handler.class=\
{PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler
ssl.keystore.type=PEM
ssl.keystore.location={{keys}}
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={{expired_keys}}
super.users=User:ANONYMOUS
"""
KBROKER = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\nauto.create.topics.enable=true\n"
APACHE_KAFKA = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
FORBIDDEN = "forbidden"


class SecuredBroker(NamedTuple):
    address: str
    expired: str
    """Address of a listener whose certificate has expired."""
    authority: Authority
    other: Authority


@pytest.fixture(scope="module")
def secured(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    """A broker where alice may log in with each mechanism, and use all topics and groups but those named FORBIDDEN."""
    directory = tmp_path_factory.mktemp("sasl-ssl")
    authority, other = Authority(directory / "authority"), Authority(directory / "other", "another authority")
    port, controller_port, *ports = free_ports(4)
    found = SecuredBroker(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", authority, other)
    members = {
        "port": port,
        "ports": ports,
        "keys": authority.pem("broker"),
        "expired_keys": authority.pem("expired", days=1, age_days=3),
    }
    if broker_name == "kbroker":
        file = directory / "server.properties"
        text = SETTINGS.format(controller="", **members)
        protocols = f"listener.security.protocol.map={PROTOCOLS}\n"
        file.write_text(f"log.dirs={directory}/data\n{KBROKER}{protocols}{text}")
        log = directory / "kbroker.log"
        with running([sys.executable, "-m", "kbroker", "serve", "--config", str(file)], log) as process:
            wait_until(lambda: "kbroker is ready on" in log.read_text(), process, log, name="kbroker")
            prepare(f"127.0.0.1:{port}")
            yield found
    elif broker_name == "apache-kafka":
        tools: JavaTools = request.getfixturevalue("java_tools")
        text = SETTINGS.format(controller=f",CONTROLLER://127.0.0.1:{controller_port}", **members)
        text += f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n{APACHE_KAFKA}"
        text += f"listener.security.protocol.map={PROTOCOLS},CONTROLLER:PLAINTEXT\n"
        with run_apache_kafka(tools, directory, text, port=port):
            prepare(f"127.0.0.1:{port}")
            yield found
    else:
        pytest.skip("needs a broker that it may configure")


def prepare(bootstrap: str) -> None:
    """Adds the user alice, the topic FORBIDDEN, and the ACLs of alice."""
    add_scram_user(bootstrap)
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([confluent.NewTopic(FORBIDDEN, 1, 1)])[FORBIDDEN].result(DEADLINE_S)
    topic, group = confluent.ResourceType.TOPIC, confluent.ResourceType.GROUP
    allow, deny = confluent.AclPermissionType.ALLOW, confluent.AclPermissionType.DENY
    bindings = [
        confluent.AclBinding(
            kind, name, confluent.ResourcePatternType.LITERAL, "User:alice", "*", confluent.AclOperation.ALL, permission
        )
        for kind in (topic, group)
        for name, permission in (("*", allow), (FORBIDDEN, deny))
    ]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_S)


def of_confluent(secured: SecuredBroker, mechanism: str = SHA_512, **changes: Any) -> dict[str, Any]:
    """Returns settings of librdkafka. `changes`: with underscores for dots."""
    settings = {
        "bootstrap.servers": secured.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.authority.file,
        "sasl.mechanism": mechanism,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    if mechanism == OAUTHBEARER:
        return {**settings, "oauth_cb": lambda _: (unsigned_token(), time.time() + 3600)}
    return {"sasl.username": "alice", "sasl.password": PASSWORD, **settings}


def of_kafka_python(secured: SecuredBroker, mechanism: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": secured.authority.file,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }


def of_aiokafka(secured: SecuredBroker, mechanism: str) -> dict[str, Any]:
    settings = of_kafka_python(secured, mechanism)
    del settings["ssl_cafile"]
    return {**settings, "ssl_context": ssl.create_default_context(cafile=secured.authority.file)}


def of_java(secured: SecuredBroker, path: Path, mechanism: str, *, authority: Authority | None = None) -> str:
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
    options = f'{module} required username="alice" password="{escaped}"'
    if mechanism == OAUTHBEARER:
        options = 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice"'
    jaas = f"{PACKAGE}.{options};".replace("\\", "\\\\")
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={(authority or secured.authority).file}\n"
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


# Logins


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(secured: SecuredBroker, topic: str, mechanism: str) -> None:
    settings = of_confluent(secured, mechanism)
    producer = Producer(settings)
    producer.produce(topic, b"hello" * 10_000)
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({**settings, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        (message,) = consumer.consume(1, DEADLINE_S)
        assert message.value() == b"hello" * 10_000
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_kafka_python(secured: SecuredBroker, topic: str, mechanism: str) -> None:
    producer = kafka.KafkaProducer(**of_kafka_python(secured, mechanism))
    try:
        assert producer.send(topic, b"hello").get(timeout=DEADLINE_S).offset == 0
    finally:
        producer.close()


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_aiokafka(secured: SecuredBroker, topic: str, mechanism: str) -> None:
    async def send() -> int:
        async with AIOKafkaProducer(**of_aiokafka(secured, mechanism)) as producer:
            return int((await producer.send_and_wait(topic, b"hello")).offset)

    assert asyncio.run(send()) == 0


def test_kcat(secured: SecuredBroker, topic: str, kcat: str) -> None:
    settings = {name: value for name, value in of_confluent(secured, PLAIN).items() if name != "bootstrap.servers"}
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    command = [kcat, "-b", secured.address, *options, "-t", topic, "-p", "0"]
    subprocess.run([*command, "-P"], input=b"tea\n", check=True, timeout=DEADLINE_S)
    read = subprocess.run([*command, "-C", "-e", "-q"], capture_output=True, check=True, timeout=DEADLINE_S)
    assert read.stdout == b"tea\n"


@pytest.mark.jvm
@pytest.mark.parametrize("mechanism", [SHA_512, OAUTHBEARER])
def test_java(secured: SecuredBroker, topic: str, mechanism: str, java_tools: JavaTools, tmp_path: Path) -> None:
    config = of_java(secured, tmp_path / "client.properties", mechanism)
    java_tools.console_producer(secured.address, topic, b"tea\n", "--producer.config", config)
    options = ["--consumer.config", config, "--from-beginning", "--max-messages", "1"]
    assert java_tools.console_consumer(secured.address, topic, *options) == "tea\n"


@pytest.mark.jvm
def test_java_of_3_9(secured: SecuredBroker, topic: str, java: str, judge39_classpath: str, tmp_path: Path) -> None:
    tools = JavaTools(java, judge39_classpath, tmp_path)
    config = of_java(secured, tmp_path / "client.properties", SHA_512)
    producer = ["--bootstrap-server", secured.address, "--topic", topic, "--producer.config", config]
    tools.run("kafka.tools.ConsoleProducer", *producer, stdin=b"tea\n")
    options = ["--consumer.config", config, "--from-beginning", "--max-messages", "1"]
    assert tools.console_consumer(secured.address, topic, *options) == "tea\n"


# Failures


def first_error(settings: dict[str, Any], name: str) -> str:
    """Returns the first error of a client with this name."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = [error.str() for error in errors if error.name() == name]
        if found:
            return found[0]
        assert time.monotonic() < deadline, errors
        producer.poll(0.05)


def test_confluent_kafka_with_a_wrong_password(secured: SecuredBroker) -> None:
    text = first_error(of_confluent(secured, sasl_password="wrong"), "_AUTHENTICATION")
    assert f"SASL authentication error: {GENERAL} {SHA_512}" in text


def test_confluent_kafka_with_another_authority(secured: SecuredBroker) -> None:
    text = first_error(of_confluent(secured, ssl_ca_location=secured.other.file), "_SSL")
    assert "certificate verify failed: broker certificate could not be verified" in text


def test_confluent_kafka_with_an_expired_broker(secured: SecuredBroker) -> None:
    text = first_error(of_confluent(secured, PLAIN, bootstrap_servers=secured.expired), "_SSL")
    assert "certificate verify failed" in text


def test_confluent_kafka_without_rights(secured: SecuredBroker) -> None:
    errors: list[Any] = []
    producer = Producer(of_confluent(secured))
    producer.produce(FORBIDDEN, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert errors[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    consumer = Consumer({**of_confluent(secured), "group.id": FORBIDDEN})
    try:
        consumer.subscribe(["any"])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.name() == "GROUP_AUTHORIZATION_FAILED"
    finally:
        consumer.close()


def test_python_clients_without_rights(secured: SecuredBroker) -> None:
    producer = kafka.KafkaProducer(**of_kafka_python(secured, SHA_512), max_block_ms=10_000)
    try:
        with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
            producer.send(FORBIDDEN, b"x").get(timeout=DEADLINE_S)
    finally:
        producer.close()

    async def send() -> None:
        async with AIOKafkaProducer(**of_aiokafka(secured, SHA_512)) as asynchronous:
            await asynchronous.send_and_wait(FORBIDDEN, b"x")

    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(send())


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("another authority", "SslAuthenticationException: SSL handshake failed"),
        ("expired", "CertificateExpiredException|PKIX path validation failed: .*validity check failed"),
        ("no right", "TopicAuthorizationException"),
    ],
)
def test_java_fails(secured: SecuredBroker, java_tools: JavaTools, tmp_path: Path, kind: str, error: str) -> None:
    authority = secured.other if kind == "another authority" else secured.authority
    config = of_java(secured, tmp_path / "client.properties", PLAIN, authority=authority)
    address = secured.expired if kind == "expired" else secured.address
    command = ["--bootstrap-server", address, "--command-config", config, "--create", "--topic", FORBIDDEN]
    with pytest.raises(AssertionError, match=error):
        java_tools.run("org.apache.kafka.tools.TopicCommand", *command)
