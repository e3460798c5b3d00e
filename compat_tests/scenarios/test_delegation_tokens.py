"""Delegation tokens: Kafka's tool and Java clients at both brokers, and error codes on the wire.

librdkafka and the Python clients can neither create tokens nor log in with them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import free_ports, running, wait_until
from compat_tests.scenarios.test_sasl import GENERAL, RawClient
from kbroker.protocol.messages.create_delegation_token import CreatableRenewers
from kbroker.protocol.messages.describe_delegation_token import DescribeDelegationTokenOwner
from kbroker.security.client_login import login_of_user

PACKAGE = "org.apache.kafka.common.security"
LISTENER = "listener.name.sasl_plaintext"
SECRET_KEY = "the-key-of-all-tokens"
DAY_MS = 86_400_000
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SETTINGS = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{{sasl_port}}{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{{sasl_port}}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN,{",".join(MECHANISMS)}
{LISTENER}.plain.sasl.jaas.config={PACKAGE}.plain.PlainLoginModule required user_alice="a" user_bob="b" user_admin="c";
{LISTENER}.scram-sha-256.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
{LISTENER}.scram-sha-512.sasl.jaas.config={PACKAGE}.scram.ScramLoginModule required;
delegation.token.secret.key={SECRET_KEY}
super.users=User:admin;User:ANONYMOUS
"""
TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
DEADLINE_S = 30.0
NOT_FOUND, OWNER_MISMATCH, NOT_ALLOWED, NOT_AUTHORIZED, INVALID_TYPE = 62, 63, 64, 65, 67


@pytest.fixture(scope="module")
def addresses(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Returns HOST:PORT of a PLAINTEXT listener and of a SASL listener of a broker with tokens and ACLs."""
    directory = tmp_path_factory.mktemp(f"tokens-{broker_name.partition(':')[0]}")
    port, sasl_port, controller_port = free_ports(3)
    here = f"127.0.0.1:{port}", f"127.0.0.1:{sasl_port}"
    if broker_name == "kbroker":
        file = directory / "server.properties"
        settings = SETTINGS.format(port=port, sasl_port=sasl_port, controller="")
        authorizer = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n"
        file.write_text(f"log.dirs={directory}/data\nauto.create.topics.enable=true\n{authorizer}{settings}")
        log = directory / "kbroker.log"
        with running([sys.executable, "-m", "kbroker", "serve", "--config", str(file)], log) as process:
            wait_until(lambda: "kbroker is ready on" in log.read_text(), process, log, name="kbroker")
            yield here
    elif broker_name == "apache-kafka":
        tools: JavaTools = request.getfixturevalue("java_tools")
        settings = SETTINGS.format(
            port=port, sasl_port=sasl_port, controller=f",CONTROLLER://127.0.0.1:{controller_port}"
        )
        settings += (
            f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        )
        with run_apache_kafka(tools, directory, settings, port=port):
            yield here
    else:
        pytest.skip("needs a broker that it may configure")


@pytest.fixture
def sasl_address(addresses: tuple[str, str]) -> str:
    return addresses[1]


class TokenClient(RawClient):
    """A connection with the requests of tokens."""

    def log_in(self, user: str, password: str) -> TokenClient:
        assert self.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        assert self.ask("SaslAuthenticate", 2, auth_bytes=f"\0{user}\0{password}".encode()).error_code == 0
        return self

    def log_in_with(self, token_id: str, secret: bytes, mechanism: str) -> Any:
        """Returns the last response."""
        password = base64.b64encode(secret).decode()
        exchange = login_of_user(mechanism, user=token_id, password=password, source="test", is_token=True).start()
        assert self.ask("SaslHandshake", 1, mechanism=mechanism).error_code == 0
        token: bytes | None = exchange.first_token()
        while True:
            response = self.ask("SaslAuthenticate", 2, auth_bytes=token)
            if response.error_code != 0:
                return response
            token = exchange.step(bytes(response.auth_bytes))
            if token is None:
                return response

    def create(self, *renewers: str, owner: str | None = None, lifetime_ms: int = -1) -> Any:
        wanted = [
            CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, _, name in (renewer.partition(":") for renewer in renewers)
        ]
        named = {} if owner is None else {"owner_principal_type": "User", "owner_principal_name": owner}
        return self.ask("CreateDelegationToken", 3, renewers=wanted, max_lifetime_ms=lifetime_ms, **named)

    def created(self, *renewers: str, **options: Any) -> Any:
        """Returns a new token as soon as the broker knows it: Apache Kafka's answers earlier."""
        response = self.create(*renewers, **options)
        assert response.error_code == 0
        self.wait_for(response.token_id, lambda found: found is not None)
        return response

    def wait_for(self, token_id: str, condition: Any) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(found := self.describe().get(token_id)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def describe(self, *owners: str) -> dict[str, Any]:
        wanted = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners] or None
        response = self.ask("DescribeDelegationToken", 3, owners=wanted)
        assert response.error_code == 0
        return {token.token_id: token for token in response.tokens}

    def renew(self, secret: bytes, period_ms: int = -1) -> Any:
        return self.ask("RenewDelegationToken", 2, hmac=secret, renew_period_ms=period_ms)

    def expire(self, secret: bytes, period_ms: int = -1) -> Any:
        return self.ask("ExpireDelegationToken", 2, hmac=secret, expiry_time_period_ms=period_ms)


@pytest.fixture
def clients(sasl_address: str) -> Iterator[tuple[TokenClient, TokenClient]]:
    """Returns connections of alice and bob."""
    alice, bob = TokenClient(sasl_address), TokenClient(sasl_address)
    yield alice.log_in("alice", "a"), bob.log_in("bob", "b")
    alice.close()
    bob.close()


# Requests


def test_a_token_has_the_lifetimes_and_the_hmac_of_the_config(clients: tuple[TokenClient, TokenClient]) -> None:
    alice, _ = clients
    created = alice.created("User:bob")
    expected = hmac.new(SECRET_KEY.encode(), created.token_id.encode(), hashlib.sha512).digest()
    assert bytes(created.hmac) == expected
    assert len(created.token_id) == 22
    assert created.expiry_timestamp_ms - created.issue_timestamp_ms == DAY_MS
    assert created.max_timestamp_ms - created.issue_timestamp_ms == 7 * DAY_MS
    described = alice.describe("alice")[created.token_id]
    assert (described.principal_type, described.principal_name) == ("User", "alice")
    assert (described.token_requester_principal_type, described.token_requester_principal_name) == ("User", "alice")
    assert [(one.principal_type, one.principal_name) for one in described.renewers] == [("User", "bob")]
    assert bytes(described.hmac) == expected
    times = described.issue_timestamp, described.expiry_timestamp, described.max_timestamp
    assert times == (created.issue_timestamp_ms, created.expiry_timestamp_ms, created.max_timestamp_ms)


@pytest.mark.parametrize(("lifetime_ms", "expiry_ms"), [(1000, 1000), (2 * DAY_MS, DAY_MS), (0, DAY_MS)])
def test_a_lifetime_is_bounded(clients: tuple[TokenClient, TokenClient], lifetime_ms: int, expiry_ms: int) -> None:
    created = clients[0].create(lifetime_ms=lifetime_ms)
    assert created.expiry_timestamp_ms - created.issue_timestamp_ms == expiry_ms
    assert created.max_timestamp_ms - created.issue_timestamp_ms == (lifetime_ms or 7 * DAY_MS)


def test_renewers_renew_and_expire_and_others_not(clients: tuple[TokenClient, TokenClient]) -> None:
    alice, bob = clients
    own, shared = alice.created(), alice.created("User:bob")
    for response in (bob.renew(own.hmac), bob.expire(own.hmac)):
        assert response.error_code == OWNER_MISMATCH
    renewed = bob.renew(shared.hmac, DAY_MS)
    assert renewed.error_code == 0
    assert renewed.expiry_timestamp_ms >= shared.expiry_timestamp_ms
    alice.wait_for(shared.token_id, lambda found: found.expiry_timestamp == renewed.expiry_timestamp_ms)
    sooner = bob.expire(shared.hmac, 60_000)
    assert (sooner.error_code, sooner.expiry_timestamp_ms < renewed.expiry_timestamp_ms) == (0, True)
    assert bob.expire(shared.hmac).error_code == 0
    alice.wait_for(shared.token_id, lambda found: found is None)
    for response in (bob.renew(shared.hmac), bob.expire(shared.hmac), alice.renew(b"x"), alice.expire(b"")):
        assert response.error_code == NOT_FOUND


def test_tokens_of_others_and_for_others_need_a_right(clients: tuple[TokenClient, TokenClient]) -> None:
    alice, bob = clients
    created = alice.created()
    assert created.token_id not in bob.describe()
    assert created.token_id not in bob.describe("alice")
    refused = bob.create(owner="alice")
    assert (refused.error_code, refused.token_id, bytes(refused.hmac)) == (NOT_AUTHORIZED, "", b"")
    assert (refused.principal_name, refused.token_requester_principal_name) == ("alice", "bob")
    times = refused.issue_timestamp_ms, refused.expiry_timestamp_ms, refused.max_timestamp_ms
    assert times == (-1, -1, -1)
    assert bob.create(owner="bob").error_code == 0


def test_a_renewer_must_be_a_user(clients: tuple[TokenClient, TokenClient]) -> None:
    assert clients[0].create("User:bob", "Group:all").error_code == INVALID_TYPE


def test_an_empty_list_of_owners_names_no_token(clients: tuple[TokenClient, TokenClient]) -> None:
    clients[0].created()
    response = clients[0].ask("DescribeDelegationToken", 3, owners=[])
    assert (response.error_code, response.tokens) == (0, [])


def test_a_client_without_identity_gets_no_tokens(addresses: tuple[str, str]) -> None:
    client = TokenClient(addresses[0])
    try:
        assert client.create().error_code == NOT_ALLOWED
        assert client.ask("DescribeDelegationToken", 3, owners=None).error_code == NOT_ALLOWED
    finally:
        client.close()


# Logins


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_token_logs_in_and_makes_no_tokens(
    clients: tuple[TokenClient, TokenClient], sasl_address: str, mechanism: str
) -> None:
    created = clients[0].created()
    client = TokenClient(sasl_address)
    try:
        response = client.log_in_with(created.token_id, created.hmac, mechanism)
        assert response.error_code == 0
        assert 0 < response.session_lifetime_ms <= DAY_MS
        assert client.create().error_code == NOT_ALLOWED
        assert client.ask("DescribeDelegationToken", 3, owners=None).error_code == NOT_ALLOWED
        assert client.renew(created.hmac).error_code == NOT_ALLOWED
        assert client.expire(created.hmac).error_code == NOT_ALLOWED
    finally:
        client.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_fails_as_a_wrong_password(
    clients: tuple[TokenClient, TokenClient], sasl_address: str, mechanism: str
) -> None:
    created = clients[0].created()
    text = f"{GENERAL} {mechanism}"
    for token_id, secret in ((created.token_id, b"wrong"), ("unknown", created.hmac)):
        client = TokenClient(sasl_address)
        try:
            response = client.log_in_with(token_id, secret, mechanism)
            assert (response.error_code, response.error_message) == (58, text)
            assert client.receive_frame() is None
        finally:
            client.close()


# Java


def write_properties(path: Path, mechanism: str, module: str, options: str) -> str:
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={PACKAGE}.{module} required {options};\n"
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


@pytest.mark.jvm
def test_the_tool_of_kafka_and_java_clients_use_a_token(
    sasl_address: str, topic: str, java_tools: JavaTools, tmp_path: Path
) -> None:
    user = write_properties(
        tmp_path / "admin.properties", "PLAIN", "plain.PlainLoginModule", 'username="admin" password="c"'
    )
    common = ["--bootstrap-server", sasl_address, "--command-config", user]

    def run(*arguments: str) -> str:
        return java_tools.run(TOOL, *common, *arguments)

    token_id, secret = found_in(run("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"))
    admin = TokenClient(sasl_address).log_in("admin", "c")
    admin.wait_for(token_id, lambda found: found is not None)
    described = run("--describe", "--owner-principal", "User:bob")  # and the tokens of other tests
    assert [token_id, secret] in [line.split()[:2] for line in described.splitlines()]
    options = f'username="{token_id}" password="{secret}" tokenauth="true"'
    logins = [
        write_properties(tmp_path / f"{mechanism}.properties", mechanism, "scram.ScramLoginModule", options)
        for mechanism in MECHANISMS
    ]
    java_tools.console_producer(sasl_address, topic, b"hello\n", "--producer.config", logins[0])
    consumed = java_tools.console_consumer(
        sasl_address, topic, "--consumer.config", logins[1], "--from-beginning", "--max-messages", "1"
    )
    assert consumed == "hello\n"
    with_token = ["--bootstrap-server", sasl_address, "--command-config", logins[0]]
    with pytest.raises(AssertionError, match="UnsupportedByAuthenticationException"):
        java_tools.run(TOOL, *with_token, "--create", "--max-life-time-period", "-1")
    assert "Completed renew operation" in run("--renew", "--renew-time-period", "-1", "--hmac", secret)
    assert "Completed expire operation" in run("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    admin.wait_for(token_id, lambda found: found is None)
    admin.close()
    with pytest.raises(AssertionError, match=f"SaslAuthenticationException: {GENERAL} {MECHANISMS[0]}"):
        java_tools.run("org.apache.kafka.tools.TopicCommand", *with_token, "--list")


def found_in(output: str) -> tuple[str, str]:
    """Returns id and HMAC of the token in the output of Kafka's tool."""
    row = re.search(r"^([A-Za-z0-9_-]{22})\s+(\S+)\s", output, re.MULTILINE)
    assert row is not None, output
    return row[1], row[2]
