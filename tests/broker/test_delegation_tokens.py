"""Delegation tokens of a whole broker: every API with its rights and errors, logins with tokens, restart and expiry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.connection import connect as connect_client
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.failures import LoginFailed
from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.create_delegation_token import CreatableRenewers
from kbroker.protocol.messages.describe_delegation_token import DescribeDelegationTokenOwner
from kbroker.security.client_login import login_of_user
from kbroker.security.delegation_token import TokenRules, token_password
from kbroker.testing.running_broker import RunningBroker, running_with
from tests.broker.conftest import Connect, StartBroker
from tests.broker.test_sasl import AdvancingClock, log_in, sasl_properties
from tests.broker.wire import Client, connect

DAY_S = 86_400
SECRET = "the-key-of-all-tokens"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SUPER_USER = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}


def properties(**more: str) -> dict[str, str]:
    return sasl_properties(delegation_token_secret_key=SECRET, **more)


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker(properties())


@pytest.fixture
async def secured(start_broker: StartBroker) -> RunningBroker:
    """A broker whose ACLs allow nothing."""
    return await start_broker({**properties(), **SUPER_USER})


async def user(connect_to: Connect, broker: RunningBroker, token: bytes) -> Client:
    client = await connect_to(broker)
    assert (await log_in(client, token)).error_code == 0
    return client


@pytest.fixture
async def alice(broker: RunningBroker, connect_to: Connect) -> Client:
    return await user(connect_to, broker, b"\0alice\0s3cret")


@pytest.fixture
async def bob(broker: RunningBroker, connect_to: Connect) -> Client:
    return await user(connect_to, broker, b"\0bob\0b0b")


async def create(
    client: Client,
    *renewers: str,
    version: int = 3,
    owner: tuple[str, str] | None = None,
    lifetime_ms: int = -1,
) -> Any:
    named = {"owner_principal_type": owner[0], "owner_principal_name": owner[1]} if owner else {}
    wanted = [
        CreatableRenewers(principal_type=kind, principal_name=name)
        for kind, _, name in (renewer.partition(":") for renewer in renewers)
    ]
    return await client.ask("CreateDelegationToken", version, renewers=wanted, max_lifetime_ms=lifetime_ms, **named)


async def describe(client: Client, *owners: str, version: int = 3) -> list[Any]:
    wanted = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
    response = await client.ask("DescribeDelegationToken", version, owners=wanted or None)
    assert response.error_code == 0
    return list(response.tokens)


async def renew(client: Client, hmac: bytes, period_ms: int = -1, *, version: int = 2) -> tuple[int, int]:
    response = await client.ask("RenewDelegationToken", version, hmac=hmac, renew_period_ms=period_ms)
    return response.error_code, response.expiry_timestamp_ms


async def expire(client: Client, hmac: bytes, period_ms: int = -1, *, version: int = 2) -> tuple[int, int]:
    response = await client.ask("ExpireDelegationToken", version, hmac=hmac, expiry_time_period_ms=period_ms)
    return response.error_code, response.expiry_timestamp_ms


def security_of(created: Any, mechanism: str = "SCRAM-SHA-512", *, is_token: bool = True) -> ConnectionSecurity:
    password = token_password(bytes(created.hmac))
    return ConnectionSecurity(
        login_of_user(mechanism, user=created.token_id, password=password, source="test", is_token=is_token), None
    )


def address_of(broker: RunningBroker) -> Address:
    return Address(broker.host, broker.port)


async def log_in_with(client: Client, created: Any, mechanism: str = "SCRAM-SHA-256") -> Any:
    """Logs in with a token over the raw connection. Returns the last response."""
    login = security_of(created, mechanism).login
    assert login is not None
    exchange = login.start()
    response = await log_in(client, exchange.first_token(), mechanism=mechanism)
    while response.error_code == 0:
        token = exchange.step(bytes(response.auth_bytes))
        if token is None:
            break
        response = await client.ask("SaslAuthenticate", 1, auth_bytes=token)
    return response


# The life of a token


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_a_token_is_created_described_renewed_and_deleted(alice: Client, version: int) -> None:
    created = await create(alice, "User:bob", version=version)
    assert created.error_code == 0
    assert bytes(created.hmac) == TokenRules(SECRET, 0, 0).hmac(created.token_id)
    assert (created.principal_type, created.principal_name) == ("User", "alice")
    assert created.expiry_timestamp_ms - created.issue_timestamp_ms == DAY_S * 1000
    assert created.max_timestamp_ms - created.issue_timestamp_ms == 7 * DAY_S * 1000
    (described,) = await describe(alice, version=version)
    assert (described.token_id, described.hmac, described.principal_name) == (created.token_id, created.hmac, "alice")
    assert [(renewer.principal_type, renewer.principal_name) for renewer in described.renewers] == [("User", "bob")]
    assert described.issue_timestamp == created.issue_timestamp_ms
    if version == 3:
        assert (described.token_requester_principal_type, described.token_requester_principal_name) == ("User", "alice")
    code, expiry = await renew(alice, created.hmac, 3 * DAY_S * 1000, version=min(version, 2))
    assert code == 0
    assert expiry >= created.issue_timestamp_ms + 3 * DAY_S * 1000
    code, expiry = await expire(alice, created.hmac, 60_000, version=min(version, 2))
    assert (code, (await describe(alice))[0].expiry_timestamp) == (0, expiry)
    code, now = await expire(alice, created.hmac)
    assert code == 0
    assert created.issue_timestamp_ms <= now < expiry
    assert await describe(alice) == []


async def test_renewers_may_renew_and_expire_and_others_not(alice: Client, bob: Client) -> None:
    own, shared = await create(alice), await create(alice, "User:bob", "User:carol")
    assert (await renew(bob, shared.hmac))[0] == 0
    assert (await expire(bob, shared.hmac))[0] == 0
    for change in (renew, expire):
        assert await change(bob, own.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
        assert await change(alice, shared.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
        assert await change(alice, b"") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)


async def test_tokens_are_described_by_owner_or_renewer(alice: Client, bob: Client) -> None:
    of_alice, of_bob = await create(alice, "User:bob"), await create(bob)
    assert {token.token_id for token in await describe(alice, "bob")} == {of_alice.token_id, of_bob.token_id}
    assert [token.token_id for token in await describe(alice, "alice")] == [of_alice.token_id]
    assert await describe(alice, "carol") == []
    response = await alice.ask("DescribeDelegationToken", 3, owners=[])
    assert (response.error_code, response.tokens) == (0, [])


# Logins


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_client_logs_in_with_a_token_as_its_owner(
    broker: RunningBroker, alice: Client, connect_to: Connect, mechanism: str
) -> None:
    created = await create(alice)
    client = await connect_to(broker)
    response = await log_in_with(client, created, mechanism)
    assert response.error_code == 0
    assert 0 < response.session_lifetime_ms <= DAY_S * 1000
    groups = await client.ask("ListGroups", 4)
    assert groups.error_code == 0
    connection = await connect_client(address_of(broker), security=security_of(created, mechanism))
    await connection.negotiate()
    await connection.aclose()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_or_deleted_token_fails_as_a_wrong_password(
    broker: RunningBroker, alice: Client, mechanism: str
) -> None:
    created, other = await create(alice), await create(alice)
    text = f"due to invalid credentials with SASL mechanism {mechanism}"
    wrong = security_of(SimpleNamespace(token_id=created.token_id, hmac=other.hmac), mechanism)
    with pytest.raises(LoginFailed, match=text):
        await connect_client(address_of(broker), security=wrong)
    with pytest.raises(LoginFailed, match=text):  # as if it were a user
        await connect_client(address_of(broker), security=security_of(created, mechanism, is_token=False))
    await expire(alice, created.hmac)
    with pytest.raises(LoginFailed, match=text):
        await connect_client(address_of(broker), security=security_of(created, mechanism))


async def test_a_token_makes_no_tokens(broker: RunningBroker, alice: Client, connect_to: Connect) -> None:
    """Attack: a token that makes or renews tokens would never end."""
    created = await create(alice)
    client = await connect_to(broker)
    assert (await log_in_with(client, created)).error_code == 0
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    answer = await create(client)
    assert (answer.error_code, answer.token_id, bytes(answer.hmac)) == (refused, "", b"")
    assert (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms) == (-1, -1, -1)
    assert await renew(client, created.hmac) == (refused, -1)
    assert await expire(client, created.hmac) == (refused, -1)
    response = await client.ask("DescribeDelegationToken", 3, owners=None)
    assert (response.error_code, response.tokens) == (refused, [])
    assert len(await describe(alice)) == 1


async def test_the_rights_of_a_token_are_those_of_its_owner(secured: RunningBroker, connect_to: Connect) -> None:
    alice = await user(connect_to, secured, b"\0alice\0s3cret")
    await secured.create_topic("orders")
    await secured.add_acls(["allow User:alice DESCRIBE topic orders"])
    client = await connect_to(secured)
    await log_in_with(client, await create(alice))
    assert (await client.topic_metadata("orders")).error_code == 0
    assert (await client.topic_metadata("others")).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Refusals


@pytest.mark.parametrize("more", [{}, {"delegation.token.secret.key": ""}])
async def test_without_a_secret_key_there_are_no_tokens(
    start_broker: StartBroker, connect_to: Connect, more: dict[str, str]
) -> None:
    client = await user(connect_to, await start_broker({**sasl_properties(), **more}), b"\0alice\0s3cret")
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert (await create(client)).error_code == disabled
    assert await renew(client, b"x") == (disabled, -1)
    assert await expire(client, b"x") == (disabled, -1)
    assert (await client.ask("DescribeDelegationToken", 3, owners=None)).error_code == disabled


@pytest.mark.parametrize("secret_key", [SECRET, ""])
async def test_clients_that_have_not_proved_who_they_are_get_no_tokens(
    start_broker: StartBroker, connect_to: Connect, secret_key: str
) -> None:
    client = await connect_to(await start_broker({"delegation.token.secret.key": secret_key}))
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert (await create(client)).error_code == refused
    assert await renew(client, b"x") == (refused, -1)
    assert await expire(client, b"x") == (refused, -1)
    assert (await client.ask("DescribeDelegationToken", 3, owners=None)).error_code == refused


async def test_the_owner_of_a_refused_token_is_named_as_in_the_request(alice: Client) -> None:
    owner = ("A:B", "x" * 32_767)
    answer = await create(alice, owner=owner)
    assert answer.error_code != 0
    assert (answer.principal_type, answer.principal_name) == owner


async def test_owner_and_renewers_are_users(alice: Client) -> None:
    refused = ErrorCode.INVALID_PRINCIPAL_TYPE
    assert (await create(alice, "User:bob", "Group:all")).error_code == refused
    assert (await create(alice, ":bob")).error_code == refused
    answer = await create(alice, owner=("Group", "bob"))
    assert (answer.error_code, answer.principal_type, answer.principal_name) == (refused, "Group", "bob")
    assert await describe(alice) == []


async def test_a_token_for_another_owner_needs_a_right(secured: RunningBroker, connect_to: Connect) -> None:
    alice = await user(connect_to, secured, b"\0alice\0s3cret")
    assert (await create(alice, owner=("User", "alice"))).error_code == 0
    answer = await create(alice, "Group:x", owner=("User", "carol"))
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (answer.principal_name, answer.token_requester_principal_name) == ("carol", "alice")
    await secured.add_acls(["allow User:alice CREATE_TOKENS user User:carol"])
    created = await create(alice, owner=("User", "carol"))
    assert (created.error_code, created.principal_name) == (0, "carol")
    assert created.token_requester_principal_name == "alice"
    assert await renew(alice, created.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    client = await connect_to(secured)
    assert (await log_in_with(client, created)).error_code == 0


@pytest.mark.parametrize(
    "right", ["DESCRIBE delegation_token {id}", "DESCRIBE_TOKENS user User:alice", "DESCRIBE delegation_token *"]
)
async def test_tokens_of_others_are_left_out_without_a_right(
    secured: RunningBroker, connect_to: Connect, right: str
) -> None:
    alice = await user(connect_to, secured, b"\0alice\0s3cret")
    bob = await user(connect_to, secured, b"\0bob\0b0b")
    created = await create(alice)
    assert await describe(bob) == await describe(bob, "alice") == []
    await secured.add_acls([f"allow User:bob {right.format(id=created.token_id)}"])
    assert [token.token_id for token in await describe(bob)] == [created.token_id]
    assert (await renew(bob, created.hmac))[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


# Time


@asynccontextmanager
async def started(data_dir: Path, clock: AdvancingClock, **more: str) -> AsyncIterator[RunningBroker]:
    config = BrokerConfig.from_properties({"kbroker.log.dir.reserve.bytes": "0", **properties(**more)})
    async with running_with(config, data_dir, [], clock=clock) as broker:
        yield broker


async def test_a_session_ends_with_its_token(data_dir: Path) -> None:
    clock = AdvancingClock()
    async with started(data_dir, clock) as broker, connect(broker.port) as alice, connect(broker.port) as client:
        await log_in(alice)
        created = await create(alice, lifetime_ms=60_000)
        assert created.expiry_timestamp_ms == created.max_timestamp_ms == created.issue_timestamp_ms + 60_000
        assert 59_000 < (await log_in_with(client, created)).session_lifetime_ms <= 60_000
        await client.expect_service()
        clock.added += 61
        for change in (renew, expire):
            assert await change(alice, created.hmac, 1000) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
        with pytest.raises(LoginFailed):
            await connect_client(address_of(broker), security=security_of(created))
        await client.send("ApiVersions", 0)
        assert await client.wait_closed() == b""
        await alice.expect_service()


async def test_a_renewed_token_renews_a_session(data_dir: Path) -> None:
    clock = AdvancingClock()
    async with started(data_dir, clock) as broker, connect(broker.port) as alice, connect(broker.port) as client:
        await log_in(alice)
        created = await create(alice)
        await expire(alice, created.hmac, 60_000)
        assert (await log_in_with(client, created)).session_lifetime_ms <= 60_000
        await renew(alice, created.hmac, 600_000)
        clock.added += 50
        assert 500_000 < (await log_in_with(client, created)).session_lifetime_ms <= 600_000
        clock.added += 50
        await client.expect_service()


async def test_a_shorter_session_of_the_config_counts(data_dir: Path) -> None:
    clock = AdvancingClock()
    async with started(data_dir, clock, connections_max_reauth_ms="5000") as broker, connect(broker.port) as alice:
        await log_in(alice)
        created = await create(alice)
        async with connect(broker.port) as client:
            assert (await log_in_with(client, created)).session_lifetime_ms == 5000


async def test_expired_tokens_are_deleted(data_dir: Path) -> None:
    clock = AdvancingClock()
    often = {"delegation_token_expiry_check_interval_ms": "10", "delegation_token_expiry_time_ms": "30000"}
    async with started(data_dir, clock, **often) as broker, connect(broker.port) as alice:
        await log_in(alice)
        old, _ = await create(alice), await create(alice, lifetime_ms=10_000)
        await renew(alice, old.hmac, 120_000)
        clock.added += 20
        with trio.fail_after(20):
            while True:
                left = [token.token_id for token in await describe(alice)]
                if left == [old.token_id]:
                    return
                await trio.sleep(0.01)


async def test_tokens_survive_a_restart(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(properties())
    alice = await user(connect_to, broker, b"\0alice\0s3cret")
    created, deleted = await create(alice, "User:bob"), await create(alice)
    _, expiry = await renew(alice, created.hmac, 2 * DAY_S * 1000)
    await expire(alice, deleted.hmac)
    await broker.stop()
    old_name = {**sasl_properties(), "delegation.token.master.key": SECRET}
    broker = await start_broker(old_name)
    bob = await user(connect_to, broker, b"\0bob\0b0b")
    (described,) = await describe(bob)
    assert (described.token_id, described.expiry_timestamp) == (created.token_id, expiry)
    connection = await connect_client(address_of(broker), security=security_of(created))
    await connection.aclose()
    await broker.stop()
    broker = await start_broker(sasl_properties(delegation_token_secret_key="another"))
    with pytest.raises(LoginFailed):
        await connect_client(address_of(broker), security=security_of(created))


# Secrets


async def test_secrets_of_tokens_are_not_shown(
    broker: RunningBroker, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    created = await create(alice)
    connection = await connect_client(address_of(broker), security=security_of(created))
    await connection.aclose()
    await expire(alice, created.hmac)
    assert created.token_id in caplog.text
    assert token_password(bytes(created.hmac)) not in caplog.text
    assert SECRET not in caplog.text
    assert repr(BrokerConfig.from_properties(properties()).delegation_token_secret_key) == "[hidden]"


def test_the_newer_name_of_the_secret_key_wins() -> None:
    names = {"delegation.token.secret.key": "new", "delegation.token.master.key": "old"}
    for given in (names, dict(reversed(names.items()))):
        config = BrokerConfig.from_properties(given)
        assert config.delegation_token_secret_key is not None
        assert config.delegation_token_secret_key.value == "new"
        assert config.warnings == ()


def test_a_token_needs_a_scram_mechanism() -> None:
    with pytest.raises(UserError, match="a delegation token needs a SCRAM mechanism, not PLAIN"):
        login_of_user("PLAIN", user="id", password="hmac", source="test", is_token=True)
