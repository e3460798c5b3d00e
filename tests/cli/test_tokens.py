"""`kbroker tokens`: delegation tokens of a running broker, and logins with them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kbroker.testing.running_broker import RunningBroker, running_broker
from tests.cli.conftest import Call
from tests.cli.test_users import SASL

ID = re.compile(r"Created delegation token (\S+) of User:(\w+)\. It expires at \S+, and can be renewed until \S+\.\n")
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def write_login(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["security.protocol=SASL_PLAINTEXT", *lines, ""]))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
async def secured(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_home: Path
) -> AsyncIterator[RunningBroker]:
    """A broker with delegation tokens and the users alice and bob. Commands log in as alice."""
    data_dir = tmp_path / "secured-data"
    monkeypatch.setenv("KBROKER_USER_PASSWORD", "s3cret")
    for name in ("alice", "bob"):
        assert (await call("users", "add", name, "--data-dir", str(data_dir))).code == 0
        login = f"sasl.username={name}", "sasl.password=s3cret", "sasl.mechanism=SCRAM-SHA-256"
        write_login(tmp_path / f"{name}.properties", *login)
    async with running_broker(data_dir, {**SASL, "delegation.token.secret.key": "key"}) as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("KBROKER_COMMAND_CONFIG", str(tmp_path / "alice.properties"))
        yield broker


async def create(call: Call, *options: str) -> tuple[str, str]:
    """Returns the id of the new token, and its properties."""
    outcome = await call("tokens", "create", *options)
    found = ID.fullmatch(outcome.err)
    assert found, outcome
    return found[1], outcome.out


async def test_a_token_is_created_used_renewed_and_expired(call: Call, secured: RunningBroker, tmp_path: Path) -> None:
    assert (await call("tokens", "list")) == (0, "", "No delegation tokens.\n")
    token_id, login = await create(call, "--renewer", "User:bob", "--renewer", "User:carol")
    assert login.startswith(
        f'sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={LOGIN_MODULE} required username="{token_id}" password="'
    )
    with_token = write_login(tmp_path / "token.properties", login)
    assert (await call("topics", "create", "orders", "--command-config", with_token)).code == 0
    refused = await call("tokens", "create", "--command-config", with_token)
    assert refused.err == (
        "kbroker: delegation token: log in with SASL or a client certificate, and not with a token "
        "(DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)\n"
    )
    lines = (await call("tokens", "list")).out.splitlines()
    assert lines[0].split() == ["ID", "OWNER", "REQUESTER", "RENEWERS", "EXPIRES", "RENEWABLE", "UNTIL"]
    assert lines[1].split()[:5] == [token_id, "User:alice", "User:alice", "User:bob,", "User:carol"]
    by_bob = ("--command-config", str(tmp_path / "bob.properties"))
    renewed = await call("tokens", "renew", token_id, "--period", "3d", *by_bob)
    assert re.fullmatch(rf"Delegation token {token_id} expires at \S+\.\n", renewed.out)
    (listed,) = json.loads((await call("tokens", "list", "--owner", "User:bob", "--json")).out)
    assert (listed["id"], listed["renewers"]) == (token_id, ["User:bob", "User:carol"])
    assert f"{listed['expires']}." in renewed.out
    assert "hmac" not in listed
    later = await call("tokens", "expire", token_id, "--after", "10m", "--yes")
    assert later.out.startswith(f"Delegation token {token_id} expires at ")
    assert (await call("tokens", "expire", token_id, "--yes")).out == f"Deleted delegation token {token_id}.\n"
    assert (await call("tokens", "list")).err == "No delegation tokens.\n"
    assert "Could not log in" in (await call("topics", "list", "--command-config", with_token)).err


async def test_a_token_of_another_owner_is_printed_as_json(call: Call, secured: RunningBroker, tmp_path: Path) -> None:
    outcome = await call("tokens", "create", "--owner", "User:bob", "--lifetime", "2h", "--json")
    created = json.loads(outcome.out)
    assert (created["owner"], created["requester"], outcome.err) == ("User:bob", "User:alice", "")
    assert created["expires"] == created["renewable_until"]
    jaas = f'{LOGIN_MODULE} required username="{created["id"]}" password="{created["hmac"]}" tokenauth=true;'
    login = write_login(tmp_path / "token.properties", "sasl.mechanism=SCRAM-SHA-256", f"sasl.jaas.config={jaas}")
    assert (await call("topics", "list", "--command-config", login)).code == 0
    refused = await call("tokens", "renew", created["id"])
    assert refused.err == (
        f"kbroker: delegation token {created['id']}: only its owner and its renewers may do this "
        "(DELEGATION_TOKEN_OWNER_MISMATCH)\n"
    )


async def test_an_unknown_token_is_said_to_be_missing(call: Call, secured: RunningBroker) -> None:
    for command in (("renew", "nope"), ("expire", "nope", "--yes")):
        outcome = await call("tokens", *command)
        assert (outcome.code, outcome.err) == (
            1,
            "kbroker: Delegation token nope does not exist. Run 'kbroker tokens list' to see your tokens.\n",
        )


async def test_a_broker_without_a_secret_key_says_so(call: Call, tmp_path: Path) -> None:
    assert "log in with SASL or a client certificate" in (await call("tokens", "list")).err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create", "--owner", "alice"), "'alice' is not a user. Use User:NAME, for example User:alice."),
        (("create", "--renewer", "Group:x"), "'Group:x' is not a user."),
        (("list", "--owner", "User:"), "'User:' is not a user."),
        (("create", "--lifetime", "7"), "'7' is not a time span. Use for example 90s, 15m, 12h or 7d."),
        (("renew", "id", "--period", "-1d"), "'-1d' is not a time span."),
    ],
)
async def test_wrong_arguments_are_explained(call: Call, arguments: tuple[str, ...], text: str) -> None:
    outcome = await call("tokens", *arguments)
    assert outcome.code == 2
    assert text in outcome.err
