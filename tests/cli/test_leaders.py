"""`kbroker leaders elect` and `log-dirs describe` against a single broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call


async def test_an_election_that_is_not_needed_is_no_failure(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    code, out, err = await call("leaders", "elect", "orders")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "PARTITION", "RESULT"],
        ["orders", "0", "not", "needed"],
        ["orders", "1", "not", "needed"],
        ["Elected", "leaders", "of", "0", "partitions."],
    ]
    assert await call("leaders", "elect", "--all") == (0, "Elected leaders of 0 partitions.\n", "")
    one = json.loads((await call("leaders", "elect", "orders", "--partition", "1", "--unclean", "--yes", "--json")).out)
    assert [(row["topic"], row["partition"], row["result"]) for row in one] == [("orders", 1, "not needed")]


@pytest.mark.parametrize("arguments", [(), ("orders", "--all"), ("a", "b", "--partition", "0")])
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call("leaders", "elect", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


async def test_an_unknown_topic_or_partition_is_one_line(call: Call) -> None:
    await call("topics", "create", "orders")
    for arguments in (("leaders", "elect", "nope"), ("leaders", "elect", "orders", "--partition", "7")):
        code, out, err = await call(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)


async def test_data_directories_are_shown_with_their_partitions(call: Call, tmp_path: Path) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    await call("topics", "create", "other")
    await call("produce", "orders", "--partition", "1", stdin=b"a\n" * 1000)
    (directory,) = json.loads((await call("log-dirs", "describe", "--json")).out)
    assert (directory["path"], directory["error"], len(directory["replicas"])) == (str(tmp_path / "data"), None, 3)
    replicas = json.loads((await call("log-dirs", "describe", "orders", "--json")).out)[0]["replicas"]
    assert [(replica["topic"], replica["partition"], replica["size_bytes"] > 0) for replica in replicas] == [
        ("orders", 0, False),
        ("orders", 1, True),
    ]
    summary = (await call("log-dirs", "describe")).out.splitlines()
    assert summary[0].split() == ["BROKER", "DIRECTORY", "PARTITIONS", "SIZE", "FREE", "TOTAL", "ERROR"]
    assert summary[1].split()[1:3] == [str(tmp_path / "data"), "3"]
    rows = [line.split()[:3] for line in (await call("log-dirs", "describe", "--partitions")).out.splitlines()[1:]]
    assert [row[1:] for row in rows] == [["orders", "0"], ["orders", "1"], ["other", "0"]]


async def test_an_unknown_broker_is_one_line(call: Call) -> None:
    code, out, err = await call("log-dirs", "describe", "--broker", "77")
    assert (code, out, err.count("\n")) == (1, "", 1)
