"""Real clients at every secured listener, with every mechanism: they write and read, or fail as at Apache Kafka.

Each test is one client; its attempts are those of `logins`, and the table below has the errors that a user sees.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import ssl
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import kafka
import kafka.net.sasl.oauth
import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.secured import (
    FORBIDDEN,
    HANDSHAKES,
    OF_JAVA,
    REFUSED,
    Login,
    SecuredBroker,
    check,
    java_properties,
    logins,
    try_all,
)
from compat_tests.scenarios.test_sasl import DEADLINE_S, GENERAL, OAUTHBEARER, PASSWORD, SHA_512

ROOT = Path(__file__).parents[1]
VALUE = b"tea" * 10_000


# librdkafka


def of_librdkafka(login: Login) -> dict[str, Any]:
    settings = {"bootstrap.servers": login.address, "security.protocol": login.protocol, "log_level": 0}
    if login.is_encrypted:
        settings["ssl.ca.location"] = login.authority
    if login.certificate is not None:
        settings |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
        if login.mechanism != OAUTHBEARER:
            settings |= {"sasl.username": "alice", "sasl.password": login.password}
    return settings


def with_confluent_kafka(login: Login) -> str:
    settings = of_librdkafka(login)
    if login.mechanism == OAUTHBEARER:
        settings["oauth_cb"] = lambda _: (login.token, time.time() + 3600)
    errors: list[str] = []
    written: list[Any] = []

    def note(error: Any) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":
            errors.append(f"{error.name()}: {error.str()}")

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            written.append(message)
        else:
            note(error)

    producer = Producer({**settings, "error_cb": note})
    producer.produce(login.topic, VALUE, partition=0, on_delivery=delivered)
    deadline = time.monotonic() + DEADLINE_S
    while not written and not errors and time.monotonic() < deadline:
        producer.poll(0.05)
    if errors:
        producer.purge()
        return errors[0]
    consumer = Consumer({**settings, "group.id": "alice"})
    try:
        consumer.assign([TopicPartition(login.topic, 0, written[0].offset())])
        (message,) = consumer.consume(1, DEADLINE_S)
        return "" if message.value() == VALUE else "another record was read"
    finally:
        consumer.close()


def test_confluent_kafka(secured: SecuredBroker) -> None:
    rejected = {name: f"_AUTHENTICATION: .*{re.escape(text)}" for name, text in REFUSED.items()}
    check(
        try_all(logins(secured), with_confluent_kafka),
        {
            **rejected,
            "another authority": "_(SSL|TRANSPORT): .*certificate verify failed: broker certificate",
            "expired broker": "_(SSL|TRANSPORT): .*certificate verify failed",
            # OpenSSL names the reason more exactly than the JVM.
            **dict.fromkeys(
                HANDSHAKES[2:], "_(SSL|TRANSPORT): .*alert .*certificate|_(SSL|TRANSPORT): .*alert unknown ca"
            ),
            "no right": "TOPIC_AUTHORIZATION_FAILED",
        },
    )


def test_confluent_kafka_may_not_read_in_a_group(secured: SecuredBroker) -> None:
    login = logins(secured)[f"SASL_SSL {SHA_512}"]
    consumer = Consumer({**of_librdkafka(login), "group.id": FORBIDDEN})
    try:
        consumer.subscribe([login.topic])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.name() == "GROUP_AUTHORIZATION_FAILED"
    finally:
        consumer.close()


def test_kcat(secured: SecuredBroker, broker_name: str, kcat: str) -> None:
    def attempt(login: Login) -> str:
        settings = of_librdkafka(login)
        del settings["bootstrap.servers"], settings["log_level"]
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        if login.mechanism == OAUTHBEARER:  # librdkafka makes valid tokens only
            principal = "alice" if login.password == PASSWORD else "bob"
            options += ["-X", "enable.sasl.oauthbearer.unsecure.jwt=true"]
            options += ["-X", f"sasl.oauthbearer.config=principal={principal}"]
        command = [kcat, "-b", login.address, *options, "-t", login.topic, "-p", "0"]
        given = [*command, "-P", "-X", "message.timeout.ms=30000"]
        result = subprocess.run(given, input=b"tea\n", capture_output=True, timeout=DEADLINE_S * 2, check=False)
        if result.returncode != 0 or b"failed" in result.stderr:
            return result.stderr.decode()
        given = [*command, "-C", "-o", "-1", "-c", "1", "-q"]
        result = subprocess.run(given, capture_output=True, timeout=DEADLINE_S * 2, check=False)
        return "" if result.stdout == b"tea\n" else result.stderr.decode() or "no record was read"

    attempts = logins(secured)
    if broker_name == "apache-kafka":  # it refuses librdkafka before 2.6.1, with which kcat is often built
        attempts = {name: login for name, login in attempts.items() if "SCRAM" not in name}
    rejected = {name: text for name, text in REFUSED.items() if name in attempts}
    check(
        try_all(attempts, attempt),
        {
            **{name: f"SASL authentication error: {re.escape(text)}" for name, text in rejected.items()},
            "wrong password OAUTHBEARER": "Broker: Topic authorization failed",
            "another authority": "certificate verify failed: broker certificate could not be verified",
            "expired broker": "certificate verify failed",
            **dict.fromkeys(("no certificate", "expired certificate", "unknown certificate"), "SSL alert number"),
            "no right": "Broker: Topic authorization failed",
        },
    )


# Clients in Python


def of_python(login: Login) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": login.address, "security_protocol": login.protocol}
    if login.mechanism:
        settings["sasl_mechanism"] = login.mechanism
        if login.mechanism != OAUTHBEARER:
            settings |= {"sasl_plain_username": "alice", "sasl_plain_password": login.password}
    return settings


def with_kafka_python(login: Login, patience_ms: int) -> str:
    class Token(kafka.net.sasl.oauth.AbstractTokenProvider):
        def token(self) -> str:
            return login.token

    settings = of_python(login)
    if login.is_encrypted:
        settings["ssl_cafile"] = login.authority
    if login.certificate is not None:
        settings |= {"ssl_certfile": login.certificate, "ssl_keyfile": login.certificate}
    if login.mechanism == OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = Token()
    try:
        producer = kafka.KafkaProducer(**settings, max_block_ms=patience_ms, bootstrap_timeout_ms=patience_ms)
        try:
            offset = producer.send(login.topic, VALUE, partition=0).get(timeout=DEADLINE_S).offset
        finally:
            producer.close(timeout=5)
        consumer = kafka.KafkaConsumer(**settings, consumer_timeout_ms=int(DEADLINE_S * 1000))
        try:
            partition = kafka.TopicPartition(login.topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return "" if next(consumer).value == VALUE else "another record was read"
        finally:
            consumer.close()
    except kafka.errors.KafkaError as failure:
        return repr(failure)


def test_kafka_python(secured: SecuredBroker) -> None:
    attempts = logins(secured)
    failures = dict.fromkeys((*REFUSED, *HANDSHAKES), r"KafkaTimeoutError\('Unable to bootstrap")
    others = {name: login for name, login in attempts.items() if name not in failures}
    found = try_all(others, lambda login: with_kafka_python(login, 30_000))
    found |= try_all({name: attempts[name] for name in failures}, lambda login: with_kafka_python(login, 3000))
    check(found, {**failures, "no right": "TopicAuthorizationFailedError"})


async def with_aiokafka(login: Login) -> str:
    class Token(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return login.token

    settings = of_python(login)
    if login.is_encrypted:
        context = ssl.create_default_context(cafile=login.authority)
        if login.certificate is not None:
            context.load_cert_chain(login.certificate)
        settings["ssl_context"] = context
    if login.mechanism == OAUTHBEARER:
        settings["sasl_oauth_token_provider"] = Token()
    try:
        patience_ms = 30_000 if login.password == PASSWORD else 3000
        async with aiokafka.AIOKafkaProducer(**settings, request_timeout_ms=patience_ms) as producer:
            offset = (await producer.send_and_wait(login.topic, VALUE, partition=0)).offset
        async with aiokafka.AIOKafkaConsumer(**settings) as consumer:
            partition = aiokafka.TopicPartition(login.topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return "" if (await consumer.getone()).value == VALUE else "another record was read"
    except (AioKafkaError, OSError) as failure:
        return repr(failure)


def test_aiokafka(secured: SecuredBroker) -> None:
    async def attempt_all(attempts: Mapping[str, Login]) -> list[str]:
        return await asyncio.gather(*(with_aiokafka(login) for login in attempts.values()))

    attempts = logins(secured)
    errors = dict.fromkeys((*REFUSED, *HANDSHAKES), r'KafkaConnectionError\("Unable to bootstrap')
    # Its version 0.14 takes the refusal of a token for a success, and finds the connection closed.
    errors |= {"wrong password OAUTHBEARER": "Error", "no right": "TopicAuthorizationFailedError"}
    check(dict(zip(attempts, asyncio.run(attempt_all(attempts)), strict=True)), errors)


# Java


@pytest.fixture(scope="module")
def java_client(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the classes of SecuredClient, which run with all versions of Kafka's client."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: javac is not on the PATH")
    classes = tmp_path_factory.mktemp("classes")
    java_tools.compile([ROOT / "java" / "SecuredClient.java"], classes)
    return classes


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def property_lines(properties: Mapping[str, str]) -> str:
    return "".join(
        "{}={}\n".format(name, text.replace("\\", "\\\\").replace("\n", "\\n")) for name, text in properties.items()
    )


@pytest.mark.jvm
@pytest.mark.parametrize("version", ["4.1", "3.9", "2.8"])
def test_java(
    secured: SecuredBroker, java_client: Path, java: str, version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fixture = {"4.1": "judge_classpath", "3.9": "judge39_classpath", "2.8": "clients28_classpath"}[version]
    tools = JavaTools(java, request.getfixturevalue(fixture), tmp_path).with_classes(java_client)
    attempts = logins(secured)
    lines = [f"{login.topic} {encoded(property_lines(java_properties(login)))}\n" for login in attempts.values()]
    output = tools.run("SecuredClient", stdin="".join(lines).encode())
    found = [b64decode(line).decode() for line in output.split("\n")[:-1]]
    check(dict(zip(attempts, found, strict=True)), OF_JAVA)


# Go


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the program of `compat_tests/go`."""
    if shutil.which("go") is None:
        pytest.skip("needs Go: it is not on the PATH")
    program = str(tmp_path_factory.mktemp("go") / "secured")
    command = ["go", "build", "-o", program, "."]
    result = subprocess.run(command, cwd=ROOT / "go", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return program


@pytest.mark.long
@pytest.mark.parametrize("client", ["franz-go", "sarama"])
def test_go(secured: SecuredBroker, go_client: str, client: str) -> None:
    attempts = logins(secured)
    asked = [
        {
            "client": client,
            "address": login.address,
            "protocol": login.protocol,
            "mechanism": login.mechanism,
            "secret": login.token if login.mechanism == OAUTHBEARER else login.password,
            "authority": login.authority,
            "certificate": login.certificate or "",
            "topic": login.topic,
        }
        for login in attempts.values()
    ]
    result = subprocess.run([go_client], input=json.dumps(asked).encode(), capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    errors = {
        **{name: rf"Authentication failed\.?: {re.escape(text)}" for name, text in REFUSED.items()},
        "wrong password OAUTHBEARER": f"unexpected data in oauth response|{GENERAL} OAUTHBEARER",
        "another authority": "x509: certificate signed by unknown authority",
        "expired broker": "x509: certificate has expired or is not yet valid",
        **dict.fromkeys(HANDSHAKES[2:], "remote error: tls: "),
        "no right": r"TOPIC_AUTHORIZATION_FAILED|not authorized to access this topic",
    }
    check(dict(zip(attempts, json.loads(result.stdout), strict=True)), errors)
