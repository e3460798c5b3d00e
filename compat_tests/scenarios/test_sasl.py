"""SASL on the wire: both brokers have the same states before a login, and Kafka's tool adds users at both.

`test_secured_clients.py` has the logins of stock clients.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as confluent_admin

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import free_ports, running, wait_until
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import APIS

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


# Java


def java_properties(directory: Path, mechanism: str) -> str:
    password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    jaas = f'{PACKAGE}.scram.ScramLoginModule required username="alice" password="{password}";'.replace("\\", "\\\\")
    file = directory / "client.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(file)


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
