"""`kbroker configs` and `topics alter`: describe and alter configs; errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call


async def value_of(call: Call, key: str) -> tuple[Any, Any]:
    outcome = await call("configs", "describe", "topic", "orders", key, "--json")
    (entry,) = json.loads(outcome.out)
    return entry["value"], entry["source"]


async def test_a_config_is_set_and_reset(call: Call) -> None:
    await call("topics", "create", "orders")
    default = await value_of(call, "retention.ms")
    assert default[1] == "default"
    assert await call("configs", "alter", "topic", "orders", "--set", "retention.ms=5000") == (
        0,
        "Updated configs for topic orders.\n",
        "",
    )
    assert await value_of(call, "retention.ms") == ("5000", "dynamic topic")
    assert "retention.ms  5000" in (await call("configs", "describe", "topic", "orders")).out
    assert "  retention.ms=5000\n" in (await call("topics", "describe", "orders")).out
    assert (await call("topics", "alter", "orders", "--delete-config", "retention.ms")).code == 0
    assert await value_of(call, "retention.ms") == default


async def test_validating_changes_nothing(call: Call) -> None:
    await call("topics", "create", "orders")
    before = await value_of(call, "retention.ms")
    code, out, _ = await call("configs", "alter", "topic", "orders", "--set", "retention.ms=1", "--validate-only")
    assert (code, out) == (0, "Configs for topic orders are valid; nothing changed.\n")
    assert await value_of(call, "retention.ms") == before


async def test_nothing_set_says_how_to_see_the_defaults(call: Call) -> None:
    await call("topics", "create", "orders")
    code, out, err = await call("configs", "describe", "topic", "orders")
    assert (code, out) == (0, "")
    assert "--all" in err
    table = (await call("configs", "describe", "topic", "orders", "--all", "--documentation")).out
    assert table.startswith("CONFIG")
    assert "segment.bytes" in table


async def test_a_broker_is_named_by_its_number_or_by_default(call: Call) -> None:
    described = await call("configs", "describe", "broker", "1", "--all", "--json")
    assert "log.retention.hours" in [config["name"] for config in json.loads(described.out)]
    assert (await call("configs", "describe", "broker", "default")).code == 0
    code, _, err = await call("configs", "describe", "broker", "7")
    assert code == 1
    assert err == "kbroker: Broker 7 does not exist. Run 'kbroker cluster describe' to see all brokers.\n"
    assert (await call("configs", "describe", "broker", "one")).code == 2


async def test_an_invalid_value_is_refused_in_one_line(call: Call) -> None:
    await call("topics", "create", "orders")
    code, out, err = await call("configs", "alter", "topic", "orders", "--set", "retention.ms=soon")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "INVALID_CONFIG" in err


async def test_the_configs_of_a_file_are_set(call: Call, tmp_path: Path) -> None:
    await call("topics", "create", "orders")
    file = tmp_path / "orders.properties"
    file.write_text("# of Java\nretention.ms = 60000\ncleanup.policy=compact,\\\n  delete\n")
    altered = await call("configs", "alter", "topic", "orders", "--from-file", str(file), "--delete", "segment.ms")
    assert altered == (0, "Updated configs for topic orders.\n", "")
    assert (await value_of(call, "retention.ms"))[0] == "60000"
    assert (await value_of(call, "cleanup.policy"))[0] == "compact,delete"
    piped = await call("configs", "alter", "topic", "orders", "--from-file", "-", stdin=b"retention.ms=70000\n")
    assert piped.code == 0
    assert (await value_of(call, "retention.ms"))[0] == "70000"


@pytest.mark.parametrize(
    ("content", "problem"), [(b"# nothing\n", "has no configs"), (b"\xff\xff", "is not a text file in UTF-8")]
)
async def test_a_file_without_configs_is_one_line(call: Call, tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "orders.properties"
    file.write_bytes(content)
    refused = await call("configs", "alter", "topic", "orders", "--from-file", str(file))
    assert refused == (1, "", f"kbroker: {file} {problem}\n")


async def test_a_password_in_set_is_a_warning(call: Call, tmp_path: Path) -> None:
    name = "listener.name.ssl.ssl.keystore.password"
    alter = ("configs", "alter", "broker", "1", "--validate-only")
    warning = (
        f"kbroker: warning: every user of this machine can read {name} in the list of processes: write it into the "
        "file of --from-file instead of --set\n"
    )
    visible = await call(*alter, "--set", f"{name}=s3cret")
    assert visible.err.startswith(warning)
    file = tmp_path / "keystore.properties"
    file.write_text(f"{name}=s3cret\n")
    hidden = await call(*alter, "--from-file", str(file))
    assert (hidden.code, hidden.err) == (visible.code, visible.err.removeprefix(warning))
    both = await call(*alter, "--from-file", str(file), "--set", "a=b")
    assert (both.code, both.err.startswith("kbroker: Use either --set or --from-file, not both.")) == (2, True)


async def test_altering_nothing_is_a_usage_error(call: Call) -> None:
    assert (await call("configs", "alter", "topic", "orders")).code == 2


async def test_a_topic_gets_more_partitions(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    assert await call("topics", "alter", "orders", "--partitions", "4") == (0, "Altered topic orders.\n", "")
    (listed,) = json.loads((await call("topics", "list", "--json")).out)
    assert listed["partitions"] == 4
    code, _, err = await call("topics", "alter", "orders", "--partitions", "3")
    assert (code, err.count("\n"), "INVALID_PARTITIONS" in err) == (1, 1, True)


@pytest.mark.parametrize("no_color", ["", "1"])
async def test_a_terminal_gets_colour_unless_it_asks_for_none(call: Call, broker: RunningBroker, no_color: str) -> None:
    pty = pytest.importorskip("pty")
    await call("topics", "create", "orders")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kbroker", "topics", "list", "--bootstrap", f"{broker.host}:{broker.port}"]
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color, "COLUMNS": "100"}
    await trio.run_process(command, stdout=theirs, stderr=subprocess.STDOUT, env=environment)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "orders" in shown
    assert ("\x1b[1;36m" in shown) == (not no_color)


@pytest.mark.parametrize(
    "arguments",
    [
        ("configs", "describe", "topic", "orders", "retention"),
        ("configs", "alter", "topic", "orders", "--delete", "retention"),
        ("topics", "alter", "orders", "--delete-config", "retention"),
    ],
)
async def test_the_name_of_no_config_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    await call("topics", "create", "orders")
    code, out, err = await call(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("kbroker: Unknown topic config name: retention. Run 'kbroker configs describe topic orders")
