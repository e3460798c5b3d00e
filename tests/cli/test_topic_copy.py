"""`kbroker topics copy`: the copy has the same records, partitions and configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.testing.running_broker import running_broker
from tests.cli.conftest import Call


async def fill(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=-1")
    lines = [
        {"key": f"k{number}", "value": str(number), "timestamp": 1000 + number, "headers": {"a": "b"}, "partition": 2}
        for number in range(10)
    ]
    lines += [{"value": {"base64": "/wA="}, "partition": 0, "timestamp": 5}]
    await call("produce", "orders", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())


async def contents(call: Call, name: str, *arguments: str) -> list[dict[str, object]]:
    out = (await call("consume", name, "--json", *arguments)).out
    records = [json.loads(line) for line in out.splitlines()]
    for record in records:
        del record["topic"]
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


async def test_a_copy_has_the_same_records_partitions_and_configs(call: Call) -> None:
    await fill(call)
    assert await call("topics", "copy", "orders", "backup") == (
        0,
        "Copied 11 records from topic orders to topic backup.\n",
        "",
    )
    assert await contents(call, "backup") == await contents(call, "orders")
    (described,) = json.loads((await call("topics", "describe", "backup", "--json")).out)
    assert described["configs"] == {"retention.ms": "-1"}


async def test_an_existing_topic_is_refused_or_appended_to(call: Call) -> None:
    await fill(call)
    await call("topics", "copy", "orders", "backup")
    assert (await call("topics", "copy", "orders", "backup")).err == (
        "kbroker: Topic 'backup' already exists. Add --append to add the records to it.\n"
    )
    assert (await call("topics", "copy", "orders", "backup", "--append")).code == 0
    assert len(await contents(call, "backup")) == 22


async def test_with_another_number_of_partitions_keys_decide(call: Call) -> None:
    await fill(call)
    await call("topics", "create", "one")
    assert (await call("topics", "copy", "orders", "one", "--append")).code == 0
    assert len(await contents(call, "one", "--partition", "0")) == 11


async def test_only_a_range_of_time_is_copied(call: Call) -> None:
    await fill(call)
    out = (await call("topics", "copy", "orders", "part", "--since", "1003", "--until", "1006", "--json")).out
    assert json.loads(out) == {"source": "orders", "target": "part", "records": 3}
    assert [record["value"] for record in await contents(call, "part")] == ["3", "4", "5"]


async def test_a_topic_is_copied_to_another_cluster(call: Call, tmp_path: Path, config_home: Path) -> None:
    await fill(call)
    async with running_broker(tmp_path / "other") as other:
        address = f"{other.host}:{other.port}"
        assert (await call("topics", "copy", "orders", "orders", "--to", address)).code == 0
        assert len(await contents(call, "orders", "-b", address)) == 11
        (config_home / "kbroker").mkdir(parents=True)
        (config_home / "kbroker" / "config.toml").write_text(f'[profiles.other]\nbootstrap = "{address}"\n')
        assert (await call("topics", "copy", "orders", "second", "--to-profile", "other")).code == 0
        assert len(await contents(call, "second", "--profile", "other")) == 11


@pytest.mark.parametrize(
    "arguments", [("orders", "orders"), ("orders", "a b"), ("orders", "b", "--to", "a:1", "--to-profile", "p")]
)
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call("topics", "copy", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


async def test_a_target_that_cannot_be_reached_is_named(call: Call) -> None:
    await call("topics", "create", "orders")
    code, out, err = await call("topics", "copy", "orders", "orders", "--to", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err == (
        "kbroker: Could not connect to 127.0.0.1:1. It is the target: check --to or --to-profile (127.0.0.1:1).\n"
    )
