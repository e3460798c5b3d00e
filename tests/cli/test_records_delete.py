"""`kbroker records delete`: which records are left, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call


async def fill(call: Call, name: str = "orders") -> None:
    """Writes ten records with the timestamps 1000 to 1009 to each of two partitions."""
    await call("topics", "create", name, "--partitions", "2")
    lines = [
        json.dumps({"value": str(number), "timestamp": 1000 + number, "partition": partition})
        for partition in range(2)
        for number in range(10)
    ]
    assert (await call("produce", name, "--format", "json", stdin="\n".join(lines).encode())).code == 0


async def earliest(call: Call, name: str = "orders") -> list[int]:
    return [row["earliest"] for row in json.loads((await call("offsets", name, "--json")).out)]


async def test_records_before_an_offset_are_deleted(call: Call) -> None:
    await fill(call)
    code, out, _ = await call("records", "delete", "orders", "--partition", "1", "--before", "4", "--yes")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["TOPIC", "PARTITION", "EARLIEST"], ["orders", "1", "4"]],
    )
    assert await earliest(call) == [0, 4]
    assert (await call("consume", "orders", "--partition", "1")).out.split() == ["4", "5", "6", "7", "8", "9"]


async def test_records_before_a_timestamp_or_all_are_deleted(call: Call) -> None:
    await fill(call)
    await call("records", "delete", "orders", "--before-time", "1007", "--yes")
    assert await earliest(call) == [7, 7]
    await call("records", "delete", "orders", "--partition", "0", "--before-time", "1m", "--yes")
    assert await earliest(call) == [10, 7]
    out = (await call("records", "delete", "orders", "--before", "latest", "--yes", "--json")).out
    assert json.loads(out) == [
        {"topic": "orders", "partition": 0, "earliest": 10},
        {"topic": "orders", "partition": 1, "earliest": 10},
    ]


async def test_the_file_of_kafka_delete_records_is_read(call: Call, tmp_path: Path) -> None:
    await fill(call)
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "orders", "partition": 1, "offset": 3}], "version": 1}')
    assert (await call("records", "delete", "--from-file", str(file), "--yes")).code == 0
    assert await earliest(call) == [0, 3]
    for content in ("[", "[]", '{"partitions": []}', '{"partitions": [{"topic": 1, "partition": 0, "offset": 1}]}'):
        file.write_text(content)
        code, _, err = await call("records", "delete", "--from-file", str(file), "--yes")
        assert (code, err.count("\n")) == (1, 1), content


async def test_a_refused_partition_does_not_hide_that_others_were_changed(call: Call) -> None:
    await fill(call)
    await call("produce", "orders", "--partition", "1", stdin=b"10")
    code, out, err = await call("records", "delete", "orders", "--before", "11", "--yes")
    assert (code, out) == (1, "")
    assert "(OFFSET_OUT_OF_RANGE). Records of other partitions may be deleted: 'kbroker offsets orders' shows" in err
    assert await earliest(call) == [0, 11]
    alone = await call("records", "delete", "orders", "--partition", "0", "--before", "11", "--yes")
    assert alone.err.endswith("(OFFSET_OUT_OF_RANGE)\n")


async def test_without_a_terminal_nothing_is_deleted_without_yes(call: Call) -> None:
    await fill(call)
    for arguments in (
        ("records", "delete", "orders", "--before", "4"),
        ("topics", "delete", "orders"),
        ("leaders", "elect", "orders", "--unclean"),
        ("groups", "delete", "billing"),
        ("groups", "delete-offsets", "billing", "--topic", "orders"),
        ("transactions", "abort", "payments"),
        ("transactions", "abort-hanging", "orders", "--partition", "0", "--start-offset", "0"),
    ):
        assert await call(*arguments) == (
            1,
            "",
            "kbroker: This cannot be undone, and stdin is not a terminal to ask on. Add --yes to confirm.\n",
        )
    assert await earliest(call) == [0, 0]


async def test_an_offset_beyond_the_end_is_the_brokers_refusal(call: Call) -> None:
    await fill(call)
    code, _, err = await call("records", "delete", "orders", "--before", "11", "--yes")
    assert (code, err.count("\n"), "not within the range of offsets" in err) == (1, 1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("orders",),
        ("--before", "4"),
        ("orders", "--before", "earliest"),
        ("orders", "--before", "4", "--before-time", "1m"),
    ],
)
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call("records", "delete", *arguments, "--yes")
    assert (code, out, err.count("\n")) == (2, "", 1)
