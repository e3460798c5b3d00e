"""Profiles of the configuration file: which cluster a command connects to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.main import kbroker
from kbroker.cli.profiles import find_profile, profile_names
from kbroker.errors import UserError
from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call

FILE = """\
profile = "dev"

[profiles.dev]
bootstrap = "dev.example:9092"

[profiles.prod]
bootstrap = ["a.example:9092", "b.example:9092"]
"""


@pytest.fixture
def config_file(config_home: Path) -> Path:
    file = config_home / "kbroker" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text)


def bootstrap_of(*arguments: str) -> str:
    """Returns the addresses that `kbroker topics list` would connect to."""
    with kbroker.make_context("kbroker", [*arguments]) as ctx:
        rest = [*ctx._protected_args, *ctx.args]
        name, group, rest = kbroker.resolve_command(ctx, rest)
        assert group is not None
        with group.make_context(name, rest, parent=ctx) as inner:
            rest = [*inner._protected_args, *inner.args]
            name, command, rest = group.resolve_command(inner, rest)  # type: ignore[attr-defined]
            with command.make_context(name, rest, parent=inner) as last:
                return str(last.params["bootstrap"])


LIST = ("topics", "list")


def test_without_a_file_the_default_is_this_machine() -> None:
    assert bootstrap_of(*LIST) == "127.0.0.1:9092"
    assert profile_names() == []
    with pytest.raises(UserError, match=r"^Profile 'prod' does not exist: there is no file .*/kbroker/config.toml\.$"):
        find_profile("prod")


def test_what_is_typed_wins_over_the_environment_and_that_over_the_file(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prod = "a.example:9092,b.example:9092"
    assert bootstrap_of(*LIST) == "dev.example:9092"
    assert bootstrap_of(*LIST, "--profile", "prod") == bootstrap_of("--profile", "prod", *LIST) == prod
    monkeypatch.setenv("KBROKER_PROFILE", "prod")
    assert bootstrap_of(*LIST) == prod
    assert bootstrap_of(*LIST, "--profile", "dev") == bootstrap_of("--profile", "dev", *LIST) == "dev.example:9092"
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "env.example:1")
    assert bootstrap_of(*LIST) == "env.example:1"
    assert bootstrap_of(*LIST, "--profile", "dev") == "dev.example:9092"
    assert bootstrap_of(*LIST, "--profile", "dev", "-b", "typed.example:1") == "typed.example:1"


async def test_a_profile_is_used_for_the_connection(call: Call, broker: RunningBroker, config_file: Path) -> None:
    write(config_file, f'[profiles.here]\nbootstrap = "{broker.host}:{broker.port}"\n')
    assert (await call("topics", "create", "orders", "--profile", "here")).code == 0
    assert (await call("topics", "create", "orders", "--profile", "there")) == (
        1,
        "",
        f"kbroker: {config_file} has no profile 'there'. Profiles: here.\n",
    )


async def test_a_properties_file_of_other_bytes_is_refused_in_one_line(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xff\xfe")
    assert await call("topics", "list", "--command-config", str(file)) == (
        1,
        "",
        f"kbroker: {file} is not a text file in UTF-8\n",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[profiles.a.tls]\nca = "x"\n', "config.toml:3: profiles.a.tls is unknown"),
        ('[profiles.a.sasl]\nuser = "x"\n', "config.toml:4: profiles.a.sasl.user is unknown"),
        ("[profiles.a.ssl]\nkey.password = 5\n", "ssl.key.password must be a text"),
    ],
)
async def test_a_profile_with_unknown_security_is_refused_in_one_line(
    call: Call, config_file: Path, text: str, problem: str
) -> None:
    write(config_file, f'[profiles.a]\nbootstrap = "a:1"\n{text}')
    refused = await call("topics", "list", "--profile", "a")
    assert (refused.code, problem in refused.err, refused.err.count("\n")) == (1, True, 1), refused.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profile = \n", "config.toml:1"),
        ('[profiles.a]\nbootstrp = "a:1"\n', "profiles.a.bootstrap is missing"),
        ('[profiles.a]\nbootstrap = "a:1"\nretries = 1\n', "config.toml:3: profiles.a.retries is unknown"),
        ('colour = "red"\n', "config.toml:1: colour is unknown"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(config_file: Path, text: str, problem: str) -> None:
    config_file.write_text(text)
    with pytest.raises(UserError) as refused:
        find_profile("a")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
