"""The shell completes names of topics, groups and profiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from click.shell_completion import ShellComplete

from kbroker.cli.main import kbroker
from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call


def complete(words: list[str], incomplete: str) -> list[str]:
    completion = ShellComplete(kbroker, {}, "kbroker", "_KBROKER_COMPLETE")
    return [item.value for item in completion.get_completions(words, incomplete)]


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "describe"],
        ["topics", "delete"],
        ["topics", "copy"],
        ["consume"],
        ["produce"],
        ["offsets"],
        ["records", "delete"],
        ["configs", "describe", "topic"],
        ["transactions", "producers"],
    ],
)
async def test_topics_are_completed(call: Call, words: list[str]) -> None:
    for name in ("orders", "order-lines", "customers"):
        await call("topics", "create", name)
    assert await trio.to_thread.run_sync(complete, words, "ord") == ["order-lines", "orders"]


async def test_a_topic_that_is_typed_and_internal_topics_are_not_offered(call: Call) -> None:
    for name in ("orders", "__hidden"):
        await call("topics", "create", name)
    assert await trio.to_thread.run_sync(complete, ["topics", "delete", "orders"], "") == []
    assert await trio.to_thread.run_sync(complete, ["topics", "delete"], "__h") == ["__hidden"]


async def test_groups_are_completed(call: Call) -> None:
    await call("produce", "orders", stdin=b"1\n")
    await call("consume", "orders", "--group", "billing")
    for words in (["groups", "describe"], ["groups", "reset-offsets"], ["consume", "orders", "--group"]):
        assert await trio.to_thread.run_sync(complete, words, "b") == ["billing"]
    assert await trio.to_thread.run_sync(complete, ["configs", "describe", "group"], "") == ["billing"]


async def test_the_typed_address_is_asked(call: Call, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await call("topics", "create", "orders")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "127.0.0.1:1")
    assert await trio.to_thread.run_sync(complete, ["consume"], "") == []
    typed = ["consume", "-b", f"{broker.host}:{broker.port}"]
    assert await trio.to_thread.run_sync(complete, typed, "") == ["orders"]


def test_profiles_are_completed(config_home: Path) -> None:
    assert complete(["--profile"], "") == []
    (config_home / "kbroker").mkdir(parents=True)
    file = config_home / "kbroker" / "config.toml"
    file.write_text('[profiles.dev]\nbootstrap = "a:1"\n[profiles.prod]\nbootstrap = "b:1"\n')
    assert complete(["topics", "list", "--profile"], "p") == ["prod"]
    file.write_text("[profiles")
    assert complete(["--profile"], "") == []
