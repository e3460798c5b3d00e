"""SASL: stock clients log in at both brokers with every mechanism, and fail alike with a wrong password.

The states before the login are compared on the wire.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer
from confluent_kafka import admin as confluent_admin

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import free_ports, running, wait_until
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import APIS
from kbroker.testing import Broker

confluent: Any = confluent_admin

PLAIN, SHA_256, SHA_512, OAUTHBEARER = MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WITH_PASSWORD = (PLAIN, SHA_256, SHA_512)
PASSWORD = 's3cret "quoted" \\ ;'
PACKAGE = "org.apache.kafka.common.security"
LISTENER = "listener.name.sasl_plaintext"
SASL = rf"""
listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{{sasl_port}}{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{{sasl_port}}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms={",".join(MECHANISMS)}
{LISTENER}.plain.sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required user_alice="s3cret \\"quoted\\" \\\\ ;";
{LISTENER}.scram-sha-256.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
{LISTENER}.scram-sha-512.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
{LISTENER}.oauthbearer.sasl.jaas.config={PACKAGE}.oauthbearer.OAuthBearerLoginModule required \
  unsecuredLoginStringClaim_sub="broker";
{LISTENER}.oauthbearer.sasl.server.callback.handler.class=\
{PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler
"""
GENERAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
DEADLINE_S = 30.0
APIS_BY_NAME = {api.name: api for api in APIS}


@pytest.fixture(scope="session")
def sasl_bootstrap(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Returns HOST:PORT of a SASL listener, where alice may log in with each mechanism."""
    directory = tmp_path_factory.mktemp(f"sasl-{broker_name.partition(':')[0]}")
    port, sasl_port, controller_port = free_ports(3)
    if broker_name == "kbroker":
        file = directory / "server.properties"
        sasl = SASL.format(port=port, sasl_port=sasl_port, controller="")
        file.write_text(f"log.dirs={directory}/data\nauto.create.topics.enable=true\n{sasl}")
        log = directory / "kbroker.log"
        with running([sys.executable, "-m", "kbroker", "serve", "--config", str(file)], log) as process:
            wait_until(lambda: "kbroker is ready on" in log.read_text(), process, log, name="kbroker")
            add_scram_user(f"127.0.0.1:{port}")
            yield f"127.0.0.1:{sasl_port}"
    elif broker_name == "apache-kafka":
        tools: JavaTools = request.getfixturevalue("java_tools")
        more = SASL.format(port=port, sasl_port=sasl_port, controller=f",CONTROLLER://127.0.0.1:{controller_port}")
        more += f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
        more += (
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        )
        with run_apache_kafka(tools, directory, more, port=port):
            add_scram_user(f"127.0.0.1:{port}")
            yield f"127.0.0.1:{sasl_port}"
    else:
        pytest.skip("needs a broker that it may configure")


def add_scram_user(bootstrap: str) -> None:
    """Adds alice with AlterUserScramCredentials of a stock client."""
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (confluent.ScramMechanism.SCRAM_SHA_256, confluent.ScramMechanism.SCRAM_SHA_512):
        change = confluent.UserScramCredentialUpsertion(
            "alice", confluent.ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([change])["alice"].result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while True:  # Apache Kafka answers before its listeners know the user
        found = admin.describe_user_scram_credentials().result(DEADLINE_S)
        if len(found.get("alice", confluent.UserScramCredentialsDescription("", [])).scram_credential_infos) == 2:
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def unsigned_token(subject: str = "alice", lifetime_s: float = 3600) -> str:
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


# confluent-kafka (librdkafka)


def confluent_settings(bootstrap: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    settings = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism != OAUTHBEARER:
        return {**settings, "sasl.username": "alice", "sasl.password": password}
    lifetime_s = 3600 if password == PASSWORD else -3600
    return {**settings, "oauth_cb": lambda _: (unsigned_token(lifetime_s=lifetime_s), time.time() + 3600)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in(sasl_bootstrap: str, topic: str, mechanism: str) -> None:
    settings = confluent_settings(sasl_bootstrap, mechanism)
    producer = Producer(settings)
    producer.produce(topic, b"hello")
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while (message := consumer.poll(1)) is None or message.error() is not None:
            assert time.monotonic() < deadline
        assert message.value() == b"hello"
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        (PLAIN, "SASL authentication error: Authentication failed: Invalid username or password"),
        (
            SHA_256,
            f"SASL authentication error: {GENERAL} SCRAM-SHA-256",
        ),
        (
            SHA_512,
            f"SASL authentication error: {GENERAL} SCRAM-SHA-512",
        ),
        (OAUTHBEARER, 'SASL authentication error: {"status":"invalid_token"}'),
    ],
)
def test_confluent_kafka_fails_with_a_wrong_password(sasl_bootstrap: str, mechanism: str, text: str) -> None:
    errors: list[Any] = []
    settings = confluent_settings(sasl_bootstrap, mechanism, "wrong")
    producer = Producer({**settings, "error_cb": errors.append})
    deadline = time.monotonic() + DEADLINE_S
    while not any(error.name() == "_AUTHENTICATION" for error in errors):
        producer.poll(0.1)
        assert time.monotonic() < deadline, errors
    (first, *_) = [error.str() for error in errors if error.name() == "_AUTHENTICATION"]
    assert text in first


# kafka-python and aiokafka


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_kafka_python_logs_in_and_fails_with_a_wrong_password(sasl_bootstrap: str, topic: str, mechanism: str) -> None:
    settings = {
        "bootstrap_servers": sasl_bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "request_timeout_ms": 10_000,
        "max_block_ms": 10_000,
    }
    producer = kafka.KafkaProducer(**settings, sasl_plain_password=PASSWORD)
    try:
        assert producer.send(topic, b"hello").get(timeout=DEADLINE_S).offset == 0
    finally:
        producer.close()
    with pytest.raises(kafka.errors.KafkaError) as failure:
        kafka.KafkaProducer(**settings, sasl_plain_password="wrong").send(topic, b"x").get(timeout=DEADLINE_S)
    assert type(failure.value).__name__ in ("SaslAuthenticationFailedError", "NoBrokersAvailable", "KafkaTimeoutError")


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_aiokafka_logs_in_and_fails_with_a_wrong_password(sasl_bootstrap: str, topic: str, mechanism: str) -> None:
    settings = {
        "bootstrap_servers": sasl_bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
    }

    async def send(password: str) -> int:
        producer = AIOKafkaProducer(**settings, sasl_plain_password=password)
        try:
            await producer.start()
            return int((await producer.send_and_wait(topic, b"hello")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(send(PASSWORD)) == 0
    with pytest.raises(AioKafkaError) as failure:
        asyncio.run(send("wrong"))
    assert "Unable to bootstrap" in str(failure.value) or "SaslAuthenticationFailed" in repr(failure.value)


# kcat


def run_kcat(
    kcat: str, bootstrap: str, mechanism: str, password: str, *options: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    login = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanisms={mechanism}", "sasl.username=alice"]
    settings = [part for setting in (*login, f"sasl.password={password}") for part in ("-X", setting)]
    command = [kcat, "-b", bootstrap, *settings, *options]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S, check=False)


def check_kcat(kcat: str, bootstrap: str, topic: str, mechanism: str) -> None:
    assert run_kcat(kcat, bootstrap, mechanism, PASSWORD, "-P", "-t", topic, stdin=b"hello\n").returncode == 0
    consumed = run_kcat(kcat, bootstrap, mechanism, PASSWORD, "-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert consumed.stdout == b"hello\n"
    failed = run_kcat(kcat, bootstrap, mechanism, "wrong", "-L", "-m", "5")
    assert failed.returncode != 0
    assert b"SASL authentication error" in failed.stderr


def test_kcat_logs_in_and_fails_with_a_wrong_password(sasl_bootstrap: str, topic: str, kcat: str) -> None:
    check_kcat(kcat, sasl_bootstrap, topic, PLAIN)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_kcat_logs_in_at_kbroker_with_scram(topic: str, mechanism: str, kcat: str) -> None:
    """Apache Kafka 4.1 refuses librdkafka before 2.6.1, with which kcat is often built: it repeats its nonce."""
    with Broker(users={"alice": PASSWORD}) as broker:
        check_kcat(kcat, broker.bootstrap, topic, mechanism)


# Java


def java_properties(directory: Path, mechanism: str, password: str = PASSWORD) -> str:
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    if mechanism == OAUTHBEARER:
        # An empty subject is refused; a client without a login handler makes unsigned tokens.
        subject = "alice" if password == PASSWORD else ""
        options = f'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{subject}"'
    else:
        module = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
        options = f'{module} required username="alice" password="{escaped}"'
    jaas = f"{PACKAGE}.{options};".replace("\\", "\\\\")
    file = directory / "client.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(file)


@pytest.mark.jvm
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_logs_in(sasl_bootstrap: str, topic: str, mechanism: str, java_tools: JavaTools, tmp_path: Path) -> None:
    file = java_properties(tmp_path, mechanism)
    java_tools.console_producer(sasl_bootstrap, topic, b"hello\n", "--producer.config", file)
    consumed = java_tools.console_consumer(
        sasl_bootstrap, topic, "--consumer.config", file, "--from-beginning", "--max-messages", "1"
    )
    assert consumed == "hello\n"


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        (PLAIN, "SaslAuthenticationException: Authentication failed: Invalid username or password"),
        (
            SHA_512,
            f"SaslAuthenticationException: {GENERAL} SCRAM-SHA-512",
        ),
    ],
)
def test_java_fails_with_a_wrong_password(
    sasl_bootstrap: str, mechanism: str, text: str, java_tools: JavaTools, tmp_path: Path
) -> None:
    file = java_properties(tmp_path, mechanism, "wrong")
    with pytest.raises(AssertionError) as failure:
        java_tools.run(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            sasl_bootstrap,
            "--list",
            "--command-config",
            file,
        )
    assert text in str(failure.value)


@pytest.mark.jvm
def test_the_tool_of_kafka_adds_and_removes_users(sasl_bootstrap: str, java_tools: JavaTools, tmp_path: Path) -> None:
    user = f"user-{uuid.uuid4().hex[:8]}"
    common = ["--bootstrap-server", sasl_bootstrap, "--command-config", java_properties(tmp_path, SHA_256)]
    entity = ["--entity-type", "users", "--entity-name", user]
    configs = "kafka.admin.ConfigCommand"
    java_tools.run(configs, *common, *entity, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=pw]")
    described = java_tools.run(configs, *common, *entity, "--describe")
    assert f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-256=iterations=8192" in described
    java_tools.run(configs, *common, *entity, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in java_tools.run(configs, *common, *entity, "--describe")


# States on the wire


class RawClient:
    """A connection that sends any frames, and reads what comes back."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)

    def close(self) -> None:
        self._socket.close()

    def send_frame(self, content: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(content)) + content)

    def send(self, name: str, version: int, /, **members: Any) -> None:
        asked = APIS_BY_NAME[name]
        header = REQUEST_HEADER(
            request_api_key=asked.key, request_api_version=version, correlation_id=7, client_id="raw"
        )
        body = codec(asked.request, version).to_bytes(asked.request(**members))
        self.send_frame(codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header) + body)

    def receive_frame(self) -> bytes | None:
        """Returns the next frame, or None if the broker has closed the connection."""
        length = self._receive(4)
        return None if length is None else self._receive(struct.unpack(">i", length)[0])

    def _receive(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data

    def ask(self, name: str, version: int, /, **members: Any) -> Any:
        """Returns the response, or None if the broker has closed the connection."""
        self.send(name, version, **members)
        frame = self.receive_frame()
        if frame is None:
            return None
        answered = APIS_BY_NAME[name]
        _, position = codec(RESPONSE_HEADER, answered.response_header_version(version)).decode(frame)
        return codec(answered.response, version).decode(frame, position)[0]


@pytest.fixture
def raw(sasl_bootstrap: str) -> Iterator[RawClient]:
    client = RawClient(sasl_bootstrap)
    yield client
    client.close()


def log_in(raw: RawClient, token: bytes = f"\0alice\0{PASSWORD}".encode()) -> Any:
    assert raw.ask("SaslHandshake", 1, mechanism=PLAIN).error_code == 0
    return raw.ask("SaslAuthenticate", 2, auth_bytes=token)


def test_another_request_first_is_not_answered(raw: RawClient) -> None:
    assert raw.ask("Metadata", 1, topics=[]) is None


def test_api_versions_come_once(raw: RawClient) -> None:
    response = raw.ask("ApiVersions", 0)
    served = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    assert (served[17], served[36]) == ((0, 1), (0, 2))
    assert raw.ask("ApiVersions", 0) is None


def test_a_bad_api_versions_may_be_tried_again(raw: RawClient) -> None:
    assert raw.ask("ApiVersions", 3, client_software_name="", client_software_version="").error_code == 42
    raw.send_frame(struct.pack(">hhihx", 18, 99, 7, -1))
    frame = raw.receive_frame()
    assert frame is not None
    assert frame[4:6] == b"\0\x23"
    assert log_in(raw).error_code == 0


def test_an_unknown_mechanism_is_refused_with_the_enabled_ones(raw: RawClient) -> None:
    response = raw.ask("SaslHandshake", 1, mechanism="GSSAPI")
    assert (response.error_code, sorted(response.mechanisms)) == (33, sorted(MECHANISMS))
    assert raw.receive_frame() is None


def test_another_request_after_the_handshake_is_refused(raw: RawClient) -> None:
    assert raw.ask("SaslHandshake", 1, mechanism=PLAIN).error_code == 0
    assert raw.ask("ListGroups", 0).error_code == 34
    assert raw.receive_frame() is None


def test_raw_tokens_follow_a_handshake_of_version_0(raw: RawClient) -> None:
    assert raw.ask("SaslHandshake", 0, mechanism=PLAIN).error_code == 0
    raw.send_frame(f"\0alice\0{PASSWORD}".encode())
    assert raw.receive_frame() == b""
    assert raw.ask("Metadata", 1, topics=[]).brokers


def test_a_wrong_raw_token_is_not_answered(raw: RawClient) -> None:
    assert raw.ask("SaslHandshake", 0, mechanism=PLAIN).error_code == 0
    raw.send_frame(b"\0alice\0wrong")
    assert raw.receive_frame() is None


def test_a_second_login_is_refused(raw: RawClient) -> None:
    assert log_in(raw).error_code == 0
    response = raw.ask("SaslHandshake", 1, mechanism=PLAIN)
    assert (response.error_code, response.mechanisms) == (34, [])
    response = raw.ask("SaslAuthenticate", 2, auth_bytes=b"")
    text = "SaslAuthenticate request received after successful authentication"
    assert (response.error_code, response.error_message) == (34, text)
    assert raw.ask("Metadata", 1, topics=[]).brokers


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0\0wrong", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (
            b"admin\0alice\0" + PASSWORD.encode(),
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_a_wrong_token_of_plain_has_its_text(raw: RawClient, token: bytes, text: str) -> None:
    response = log_in(raw, token)
    assert (response.error_code, response.error_message) == (58, text)
    assert raw.receive_frame() is None


@pytest.mark.parametrize("token", [b"", b"y,,n=alice,r=abc", b"p=tls-unique,,n=alice,r=abc", b"n,,n=,r=abc"])
def test_a_wrong_message_of_scram_has_the_general_text(raw: RawClient, token: bytes) -> None:
    assert raw.ask("SaslHandshake", 1, mechanism=SHA_256).error_code == 0
    response = raw.ask("SaslAuthenticate", 1, auth_bytes=token)
    text = f"{GENERAL} SCRAM-SHA-256"
    assert (response.error_code, response.error_message) == (58, text)
    assert raw.receive_frame() is None


@pytest.mark.parametrize("length", [524_289, 2**31 - 1, -1])
def test_a_large_frame_before_the_login_closes(raw: RawClient, length: int) -> None:
    raw._socket.sendall(struct.pack(">i", length) + bytes(100))
    assert raw.receive_frame() is None
