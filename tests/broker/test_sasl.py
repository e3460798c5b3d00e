"""SASL listeners of a whole broker, over real sockets: logins, attacks before the login, sessions, credentials."""

from __future__ import annotations

import gc
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.admin.quotas import alter_quotas
from kbroker.client.admin.scram_users import delete_scram_user, describe_scram_users, set_scram_password
from kbroker.client.client_properties import client_security
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.connection import connect as connect_client
from kbroker.client.failures import LoginFailed
from kbroker.clock import SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api
from kbroker.security.jaas import PLAIN_LOGIN_MODULE, quote_jaas
from kbroker.server import broker as broker_module
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.testing.running_broker import RunningBroker, running_with
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client, connect, encode_request, fetch_members, produce_members

pytestmark = pytest.mark.usefixtures("either_watcher")

USERS = {"alice": "s3cret", "bob": "b0b", "*": "star", "ANONYMOUS": "anon", "a:b/c": 'q"\\;'}
LISTENER = "listener.name.sasl_plaintext"
ALICE = b"\0alice\0s3cret"
ONE_TOPIC = {"topics": [], "allow_auto_topic_creation": False}


def sasl_properties(**more: str) -> dict[str, str]:
    users = " ".join(f"{quote_jaas(f'user_{name}')}={quote_jaas(password)}" for name, password in USERS.items())
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{LISTENER}.plain.sasl.jaas.config": f"{PLAIN_LOGIN_MODULE} required {users};",
        "connection.failed.authentication.delay.ms": "10",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **{name.replace("_", "."): text for name, text in more.items()},
    }


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker(sasl_properties())


async def log_in(client: Client, token: bytes = ALICE, *, mechanism: str = "PLAIN", version: int = 1) -> Any:
    handshake = await client.ask("SaslHandshake", 1, mechanism=mechanism)
    assert handshake.error_code == 0
    return await client.ask("SaslAuthenticate", version, auth_bytes=token)


def security_of(user: str, password: str, mechanism: str = "PLAIN") -> Any:
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    return client_security(properties, source="test")


@pytest.fixture
async def admin(broker: RunningBroker) -> AsyncIterator[Cluster]:
    security = security_of("alice", "s3cret")
    async with open_cluster([Address(broker.host, broker.port)], security=security) as cluster:
        yield cluster


# Logins


async def test_a_client_is_served_after_its_login_only(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    await client.send("Metadata", 12, **ONE_TOPIC)
    assert await client.wait_closed() == b""
    client = await connect_to(broker)
    assert (await log_in(client)).error_code == 0
    assert (await client.ask("Metadata", 12, **ONE_TOPIC)).brokers[0].port == broker.port


@pytest.mark.parametrize("user", USERS)
async def test_any_name_may_be_a_user(broker: RunningBroker, connect_to: Connect, user: str) -> None:
    client = await connect_to(broker)
    response = await log_in(client, f"\0{user}\0{USERS[user]}".encode())
    assert response.error_code == 0
    principals = {connection.session.principal for connection in connections_of(broker)}
    assert principals == {f"User:{user}"}
    await client.expect_service()


def connections_of(broker: RunningBroker) -> list[Any]:
    """Returns the open connections. Nothing that a test may use refers to them, so they are found by their type."""
    return [found for found in gc.get_objects() if isinstance(found, Connection) and not found.is_closed]


async def test_requests_behind_the_last_token_are_served_after_it(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    frames = client.encode("ApiVersions", 0)
    frames += client.encode("SaslHandshake", 1, mechanism="PLAIN")
    frames += client.encode("SaslAuthenticate", 1, auth_bytes=ALICE)
    frames += client.encode("Metadata", 12, **ONE_TOPIC)
    await client.send_bytes(frames)
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).brokers


async def test_requests_behind_a_wrong_token_are_not_served(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    frames = client.encode("SaslHandshake", 1, mechanism="PLAIN")
    frames += client.encode("SaslAuthenticate", 1, auth_bytes=b"\0alice\0wrong")
    frames += encode_request("Metadata", 12, 9, **ONE_TOPIC)
    frames += encode_request("CreateTopics", 2, 9, topics=[], timeout_ms=1, validate_only=False)
    await client.send_bytes(frames)
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await client.wait_closed() == b""


async def test_a_request_before_the_token_closes_after_its_refusal(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    assert (await client.ask("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
    response = await client.ask("ListGroups", 2)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await client.wait_closed() == b""


async def test_a_handshake_of_version_0_is_followed_by_raw_tokens(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    assert (await client.ask("SaslHandshake", 0, mechanism="PLAIN")).error_code == 0
    await client.send_bytes(struct.pack(">i", len(ALICE)) + ALICE)
    assert await client.receive_frame() == b""
    await client.expect_service()


async def test_a_logged_in_client_cannot_log_in_again(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    await log_in(client)
    assert (await client.ask("SaslHandshake", 1, mechanism="PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    response = await client.ask("SaslAuthenticate", 2, auth_bytes=b"\0bob\0b0b")
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert response.error_message == "SaslAuthenticate request received after successful authentication"
    await client.expect_service()


async def test_a_listener_without_sasl_refuses_the_handshake(start_broker: StartBroker, connect_to: Connect) -> None:
    client = await connect_to(await start_broker({}))
    response = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    await client.expect_service()


# Limits before the login


@pytest.mark.parametrize("length", [524_289, 2**31 - 1, -1, -(2**31)])
async def test_a_frame_before_the_login_is_bounded(broker: RunningBroker, connect_to: Connect, length: int) -> None:
    client = await connect_to(broker)
    await client.send_bytes(struct.pack(">i", length) + bytes(64))
    assert await client.wait_closed() == b""


async def test_a_frame_of_the_largest_size_is_read_before_the_login(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    frame = encode_request("SaslAuthenticate", 0, 2, auth_bytes=bytes(524_288 - 18))
    assert len(frame) == 524_288 + 4
    await client.send_bytes(frame)
    assert b"expected 3 tokens, got 4" in await client.receive_frame()


async def test_larger_frames_are_allowed_after_the_login(broker: RunningBroker, connect_to: Connect) -> None:
    client = await connect_to(broker)
    await log_in(client)
    await client.create_topic("large")
    answer = await client.produce("large", make_batch(bytes(700_000)))
    assert answer.error_code == 0


async def test_thousands_of_half_frames_before_the_login_hold_little_memory(
    broker: RunningBroker, connect_to: Connect
) -> None:
    clients = [await connect_to(broker) for _ in range(100)]
    for client in clients:
        await client.send_bytes(struct.pack(">i", 500_000) + bytes(100))
    good = await connect_to(broker)
    assert (await log_in(good)).error_code == 0
    await good.expect_service()
    waiting = [connection for connection in connections_of(broker) if connection.reader.is_mid_frame]
    assert sum(connection.reader.reserved for connection in waiting) <= len(clients) * 64 * 1024


async def test_a_client_that_never_logs_in_is_closed(
    start_broker: StartBroker, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "ConnectionLimits", partial(ConnectionLimits, max_login_ms=50))
    broker = await start_broker(sasl_properties())
    client = await connect_to(broker)
    await client.send_bytes(b"\0")
    assert await client.wait_closed() == b""


async def test_a_failed_login_is_answered_after_the_delay(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(sasl_properties(connection_failed_authentication_delay_ms="300"))
    client, other = await connect_to(broker), await connect_to(broker)
    began = trio.current_time()
    response = await log_in(client, b"\0alice\0wrong")
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert trio.current_time() - began >= 0.29
    assert await client.wait_closed() == b""
    began = trio.current_time()
    await other.send("Metadata", 0, topics=[])
    assert await other.wait_closed() == b""
    assert trio.current_time() - began >= 0.29


async def test_guessing_on_many_connections_is_delayed_on_each(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(sasl_properties(connection_failed_authentication_delay_ms="200"))
    clients = [await connect_to(broker) for _ in range(20)]
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(log_in, client, b"\0alice\0guess%d" % number)
    assert trio.current_time() - began >= 0.19
    good = await connect_to(broker)
    assert (await log_in(good)).error_code == 0


async def test_names_and_reasons_cannot_break_a_line_of_the_log(
    broker: RunningBroker, connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await connect_to(broker)
    response = await client.ask("SaslHandshake", 1, mechanism="X\r\nINFO forged \x1b[31m")
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    await client.wait_closed()
    lines = [record.getMessage() for record in caplog.records if "Failed authentication" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].isprintable()


async def test_a_password_is_never_logged(
    broker: RunningBroker, connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await log_in(await connect_to(broker), b"\0alice\0wr0ng-pa55word")
    await log_in(await connect_to(broker))
    assert "wr0ng-pa55word" not in caplog.text
    assert "s3cret" not in caplog.text


# Sessions


class AdvancingClock(SystemClock):
    """System time, plus the seconds that a test adds."""

    added = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(1000 * self.added)

    def monotonic(self) -> float:
        return super().monotonic() + self.added


@pytest.fixture
def clock() -> AdvancingClock:
    return AdvancingClock()


@pytest.fixture
async def sessions_of_a_minute(data_dir: Path, clock: AdvancingClock) -> AsyncIterator[RunningBroker]:
    defaults = {"kbroker.log.dir.reserve.bytes": "0"}
    config = BrokerConfig.from_properties({**defaults, **sasl_properties(connections_max_reauth_ms="60000")})
    async with running_with(config, data_dir, [], clock=clock) as broker:
        yield broker


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[Client]:
    async with connect(broker.port) as client:
        yield client


async def test_a_session_ends_and_can_be_renewed(sessions_of_a_minute: RunningBroker, clock: AdvancingClock) -> None:
    broker = sessions_of_a_minute
    async with connected(broker) as client, connected(broker) as lazy:
        assert (await log_in(client)).session_lifetime_ms == 60_000
        assert (await log_in(lazy)).session_lifetime_ms == 60_000
        clock.added += 40
        await client.expect_service()
        assert (await log_in(client)).session_lifetime_ms == 60_000
        clock.added += 40
        await client.expect_service()
        await lazy.send("ApiVersions", 0)
        assert await lazy.wait_closed() == b""


async def test_a_client_past_the_end_may_still_re_authenticate(
    sessions_of_a_minute: RunningBroker, clock: AdvancingClock
) -> None:
    async with connected(sessions_of_a_minute) as client:
        await log_in(client)
        clock.added += 70
        assert (await log_in(client)).error_code == 0
        await client.expect_service()


async def test_a_second_re_authentication_within_a_second_is_refused(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker(sasl_properties(connections_max_reauth_ms="60000"))
    client = await connect_to(broker)
    await log_in(client)
    assert (await log_in(client)).error_code == 0
    assert (await client.ask("SaslHandshake", 1, mechanism="PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    await client.expect_service()


async def test_re_authentication_as_another_user_closes(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(sasl_properties(connections_max_reauth_ms="60000"))
    client = await connect_to(broker)
    await log_in(client)
    response = await log_in(client, b"\0bob\0b0b")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals during re-authentication from User.alice: User.bob" in response.error_message
    assert await client.wait_closed() == b""


async def test_re_authentication_behind_a_waiting_fetch_keeps_the_order(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker(sasl_properties(connections_max_reauth_ms="60000"))
    client, producer = await connect_to(broker), await connect_to(broker)
    await log_in(client)
    await log_in(producer)
    await producer.create_topic("orders")
    await client.send("Fetch", 11, **fetch_members({("orders", 0): 0}, max_wait_ms=20_000))
    await client.send("SaslHandshake", 1, mechanism="PLAIN")
    await client.send("SaslAuthenticate", 1, auth_bytes=ALICE)
    await client.send("ApiVersions", 0)
    await producer.produce("orders", make_batch(b"x"))
    fetched = await client.receive()
    assert fetched.responses[0].partitions[0].high_watermark == 1
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == 0


async def test_a_failed_re_authentication_ends_a_waiting_fetch(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(sasl_properties(connections_max_reauth_ms="60000"))
    client = await connect_to(broker)
    await log_in(client)
    await client.create_topic("orders")
    await client.send("Fetch", 11, **fetch_members({("orders", 0): 0}, max_wait_ms=20_000))
    await client.send("SaslHandshake", 1, mechanism="PLAIN")
    await client.send("SaslAuthenticate", 1, auth_bytes=b"\0alice\0wrong")
    with trio.fail_after(5):
        assert await client.wait_closed() == b""


# SCRAM users


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_that_was_added_logs_in_and_one_that_was_removed_not(
    broker: RunningBroker, admin: Cluster, mechanism: str
) -> None:
    address = Address(broker.host, broker.port)
    await set_scram_password(admin, "carol/x", password="pässword", mechanisms=[mechanism], iterations=4096)
    assert await describe_scram_users(admin) == [("carol/x", {mechanism: 4096})]
    connection = await connect_client(address, security=security_of("carol/x", "pässword", mechanism))
    for user, password in (("carol/x", "wrong"), ("nobody", "pässword")):
        with pytest.raises(LoginFailed, match=f"due to invalid credentials with SASL mechanism {mechanism}"):
            await connect_client(address, security=security_of(user, password, mechanism))
    await delete_scram_user(admin, "carol/x", [mechanism])
    with pytest.raises(LoginFailed):
        await connect_client(address, security=security_of("carol/x", "pässword", mechanism))
    await connection.negotiate()  # as in Kafka, it outlives its credential
    await connection.aclose()


async def test_credentials_survive_a_restart(start_broker: StartBroker, data_dir: Path) -> None:
    broker = await start_broker(sasl_properties())
    security = security_of("alice", "s3cret")
    async with open_cluster([Address(broker.host, broker.port)], security=security) as cluster:
        await set_scram_password(cluster, "carol", password="pw", mechanisms=["SCRAM-SHA-512"], iterations=8192)
    await broker.stop()
    broker = await start_broker(sasl_properties())
    carol = security_of("carol", "pw", "SCRAM-SHA-512")
    async with open_cluster([Address(broker.host, broker.port)], security=carol) as cluster:
        assert await describe_scram_users(cluster) == [("carol", {"SCRAM-SHA-512": 8192})]


async def test_this_client_renews_its_login_before_the_session_ends(
    sessions_of_a_minute: RunningBroker, clock: AdvancingClock
) -> None:
    broker = sessions_of_a_minute
    connection = await connect_client(Address(broker.host, broker.port), security=security_of("alice", "s3cret"))
    try:
        left = connection._renew_login_at - trio.current_time()
        assert 45 < left <= 51
        clock.added += 50
        connection._renew_login_at = trio.current_time()  # as if 51 seconds had passed
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connection.negotiate)
        clock.added += 50
        await connection.negotiate()
    finally:
        await connection.aclose()


# Quotas


async def test_a_quota_of_a_user_holds_for_that_user_only(broker: RunningBroker, admin: Cluster) -> None:
    await alter_quotas(admin, {"user": "bob"}, limits={"producer_byte_rate": 1.0})
    waits = {}
    for user in ("alice", "bob"):
        async with open_cluster(
            [Address(broker.host, broker.port)], security=security_of(user, USERS[user])
        ) as cluster:
            connection = await cluster.any_connection()
            response = await connection.send(api(0), at_most=9, **produce_members("quotas", make_batch(bytes(5000))))
            waits[user] = response.throttle_time_ms
    assert waits["alice"] == 0
    assert waits["bob"] > 0


# Configs that cannot work


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "kbroker has no GSSAPI"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "has DIGEST-MD5, which is not one of"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "OAUTHBEARER needs a validator of tokens"),
        ({f"{LISTENER}.plain.sasl.jaas.config": "x"}, "Login module control flag not specified"),
        ({f"{LISTENER}.plain.sasl.server.callback.handler.class": "a.B"}, "cannot run Java classes"),
        ({f"{LISTENER}.scram-sha-256.sasl.jaas.config": f"{PLAIN_LOGIN_MODULE} required;"}, "needs the login module"),
    ],
)
async def test_a_listener_that_cannot_work_stops_the_start(
    start_broker: StartBroker, changes: dict[str, str], problem: str
) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match=problem), flatten_subgroups=True, allow_unwrapped=True):
        await start_broker({**sasl_properties(), **changes})


async def test_plain_without_users_stops_the_start(start_broker: StartBroker) -> None:
    properties = sasl_properties()
    del properties[f"{LISTENER}.plain.sasl.jaas.config"]
    properties["sasl.jaas.config"] = f'{PLAIN_LOGIN_MODULE} required user_a="b";'
    with pytest.RaisesGroup(
        pytest.RaisesExc(UserError, match="PLAIN needs its users: set listener.name.sasl_plaintext.plain"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        await start_broker(properties)
