"""`kbroker users`: SCRAM users of a running broker, of a data directory, and logins with profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.cli.command import Command, walk_commands
from kbroker.cli.commands.users import PASSWORD_VARIABLE
from kbroker.cli.main import kbroker
from kbroker.testing.running_broker import RunningBroker, running_broker
from tests.cli.conftest import Call

SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}
BOTH = "SCRAM-SHA-256, SCRAM-SHA-512"


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(PASSWORD_VARIABLE, "s3cret")
    return "s3cret"


async def test_users_are_added_listed_and_removed(call: Call, password: str) -> None:
    assert (await call("users", "list")) == (0, "", "No users with SCRAM credentials.\n")
    assert (await call("users", "add", "alice")) == (0, f"Added credentials of user alice: {BOTH}.\n", "")
    added = await call("users", "add", "bob", "--mechanism", "scram-sha-256", "--iterations", "8192")
    assert added.out == "Added credentials of user bob: SCRAM-SHA-256.\n"
    assert json.loads((await call("users", "list", "--json")).out) == [
        {"user": "alice", "iterations": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}},
        {"user": "bob", "iterations": {"SCRAM-SHA-256": 8192}},
    ]
    lines = [line.split() for line in (await call("users", "list")).out.splitlines()]
    assert lines == [
        ["USER", "MECHANISM", "ITERATIONS"],
        ["alice", "SCRAM-SHA-256", "4096"],
        ["alice", "SCRAM-SHA-512", "4096"],
        ["bob", "SCRAM-SHA-256", "8192"],
    ]
    removed = await call("users", "remove", "alice", "--mechanism", "SCRAM-SHA-512", "--yes")
    assert removed.out == "Removed credentials of user alice: SCRAM-SHA-512.\n"
    assert (
        await call("users", "remove", "alice", "--yes")
    ).out == "Removed credentials of user alice: SCRAM-SHA-256.\n"
    failed = await call("users", "remove", "alice", "--yes")
    assert (failed.code, failed.err) == (
        1,
        "kbroker: user alice: Attempt to describe a user credential that does not exist: alice (RESOURCE_NOT_FOUND)\n",
    )


async def test_a_password_is_read_from_a_file_or_stdin(call: Call, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    assert (await call("users", "add", "alice", "--password-file", str(tmp_path / "password"))).code == 0
    assert (await call("users", "add", "bob", "--password-file", "-", stdin=b"s3cret\n")).code == 0
    missing = await call("users", "add", "carol", "--password-file", str(tmp_path / "missing"))
    assert missing.code == 1
    assert missing.err.startswith("kbroker: Could not read ")
    assert (await call("users", "add", "carol")).err == (
        f"kbroker: No password. Set {PASSWORD_VARIABLE}, or use --password-file.\n"
    )
    empty = await call("users", "add", "carol", "--password-file", "-")
    assert empty.err == "kbroker: The password is empty.\n"


@pytest.mark.parametrize("name", ["", "müller", "a\nb"])
async def test_a_name_that_scram_cannot_send_is_refused(call: Call, password: str, name: str) -> None:
    outcome = await call("users", "add", name)
    assert outcome.code == 2
    assert "printable ASCII" in outcome.err


async def test_a_quota_of_a_user_stays(call: Call, password: str) -> None:
    await call("quotas", "set", "--user", "alice", "producer_byte_rate=1000")
    await call("users", "add", "alice")
    await call("users", "remove", "alice", "--yes")
    assert "producer_byte_rate" in (await call("quotas", "list")).out


def write_profile(config_home: Path, broker: RunningBroker, *lines: str) -> None:
    file = config_home / "kbroker" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = [f'bootstrap = "{broker.bootstrap}"', 'security.protocol = "SASL_PLAINTEXT"', 'sasl.username = "admin"']
    file.write_text("\n".join(["[profiles.secured]", *text, *lines, ""]))
    file.chmod(0o600)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_the_first_user_is_added_before_the_start(
    call: Call, password: str, tmp_path: Path, config_home: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "secured-data"
    assert (await call("users", "add", "admin", "--data-dir", str(data_dir))).code == 0
    monkeypatch.delenv("KBROKER_BOOTSTRAP")
    async with running_broker(data_dir, SASL) as secured:
        in_use = await call("users", "add", "admin", "--data-dir", str(data_dir))
        assert in_use.err == f"kbroker: {data_dir} is in use by a broker. Stop the broker first.\n"
        login = [f'sasl.mechanism = "{mechanism}"', 'sasl.password = "s3cret"']
        write_profile(config_home, secured, *login)
        assert (await call("users", "list", "--profile", "secured")).out.count("admin") == 2
        (tmp_path / "password").write_text("s3cret\n")
        (tmp_path / "password").chmod(0o600)
        write_profile(config_home, secured, login[0], f'sasl.password_file = "{tmp_path}/password"')
        assert (await call("topics", "create", "orders", "--profile", "secured")).code == 0
        monkeypatch.setenv("THE_PASSWORD", "s3cret")
        write_profile(config_home, secured, login[0], 'sasl.password_env = "THE_PASSWORD"')
        assert (await call("topics", "list", "--profile", "secured")).code == 0
        jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        config = f"""sasl.jaas.config = '{jaas} username="admin" password="s3cret";'"""
        write_profile(config_home, secured, login[0], config)
        assert (await call("topics", "list", "--profile", "secured")).code == 0
        write_profile(config_home, secured, login[0], 'sasl.password = "wrong"')
        failed = await call("topics", "list", "--profile", "secured")
        assert failed.code == 1
        assert failed.err == (
            f"kbroker: Could not log in to {secured.bootstrap}: Authentication failed during authentication due to "
            f"invalid credentials with SASL mechanism {mechanism}\n"
        )


async def test_a_file_with_a_secret_must_be_private(
    call: Call, broker: RunningBroker, config_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KBROKER_BOOTSTRAP")
    write_profile(config_home, broker, 'sasl.mechanism = "PLAIN"', 'sasl.password = "s3cret"')
    file = config_home / "kbroker" / "config.toml"
    file.chmod(0o644)
    outcome = await call("topics", "list", "--profile", "secured")
    assert outcome.code == 1
    assert f"{file} holds a secret and is readable by others. Run: chmod 600 {file}" in outcome.err


async def test_a_login_at_a_listener_without_sasl_is_explained(
    call: Call, broker: RunningBroker, config_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KBROKER_BOOTSTRAP")
    write_profile(config_home, broker, 'sasl.mechanism = "PLAIN"', 'sasl.password = "s3cret"')
    outcome = await call("topics", "list", "--profile", "secured")
    assert outcome.err == f"kbroker: Could not log in to {broker.bootstrap}: its listener does not use SASL\n"


async def test_the_configs_of_a_secured_zookeeper_come_from_a_file(call: Call, tmp_path: Path, password: str) -> None:
    """tests/cluster/test_secured_zookeeper.py adds users to a real one."""
    file = tmp_path / "server.properties"
    file.write_text("listeners=SSL://a:1\nzookeeper.set.acl=true\n")
    arguments = ("users", "add", "alice", "--zookeeper-config", str(file))
    alone = await call(*arguments)
    assert (alone.code, "--zookeeper-config needs --zookeeper" in alone.err) == (2, True)
    refused = await call(*arguments, "--zookeeper", "127.0.0.1:1")
    assert refused.code == 1
    assert refused.err.startswith("kbroker: zookeeper.set.acl is set to true, but ZooKeeper client TLS configuration")
    file.write_bytes(b"\xff")
    unreadable = await call(*arguments, "--zookeeper", "127.0.0.1:1")
    assert (unreadable.code, unreadable.err) == (1, f"kbroker: {file} is not a text file in UTF-8\n")


def test_every_example_is_one_of_these() -> None:
    """The examples of the help ask for passwords or need a stopped broker: the tests above run their forms."""
    examples = [
        example.call
        for _, command in walk_commands(kbroker)
        if isinstance(command, Command)
        for example in command.examples
        if example.call.startswith("kbroker users")
    ]
    assert examples == [
        "kbroker users add alice",
        "kbroker users add alice --password-file alice.password",
        "kbroker users add admin --data-dir kbroker-data",
        "kbroker users add admin --zookeeper 127.0.0.1:2181",
        "kbroker users add admin --zookeeper zk:2182 --zookeeper-config server.properties",
        "kbroker users list",
        "kbroker users list --json",
        "kbroker users remove alice --yes",
        "kbroker users remove alice --mechanism SCRAM-SHA-256 --yes",
    ]
