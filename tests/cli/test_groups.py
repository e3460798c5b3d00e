"""`kbroker groups`: describes groups with and without members, resets their offsets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.connection import BrokerConnection, open_connection
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION, TopicPartitionAssignment
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.join_group import JoinGroupRequestProtocol
from kbroker.protocol.messages.sync_group import SyncGroupRequestAssignment
from kbroker.protocol.registry import api
from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call, Outcome

JOIN, LEAVE, SYNC = api(11), api(13), api(14)
VERSION_0 = b"\0\0"


async def join(connection: BrokerConnection, group: str, topic: str, member_id: str = "") -> Any:
    subscription = VERSION_0 + codec(SUBSCRIPTION, 0).to_bytes(SUBSCRIPTION(topics=[topic]))
    return await connection.send(
        JOIN,
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id="shelf-1",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
    )


@asynccontextmanager
async def member(broker: RunningBroker, group: str, topic: str, partitions: list[int]) -> AsyncIterator[str]:
    """Joins the group as a member that owns these partitions; yields its member id."""
    async with open_connection(Address(broker.host, broker.port), client_id="reader-01") as connection:
        joined = await join(connection, group, topic)
        assert joined.error_code == ErrorCode.NONE
        owned = ASSIGNMENT(assigned_partitions=[TopicPartitionAssignment(topic=topic, partitions=partitions)])
        synced = await connection.send(
            SYNC,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id="shelf-1",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=joined.member_id, assignment=VERSION_0 + codec(ASSIGNMENT, 0).to_bytes(owned)
                )
            ],
        )
        assert synced.error_code == ErrorCode.NONE
        yield joined.member_id


@pytest.fixture
async def billing(call: Call) -> str:
    """Returns a group that has consumed partition 0 of orders. Partitions 0 and 1 have ten records each."""
    await call("topics", "create", "orders", "--partitions", "2")
    for partition in ("0", "1"):
        lines = [json.dumps({"value": str(number), "timestamp": 1000 + number}) for number in range(10)]
        await call("produce", "orders", "--format", "json", "--partition", partition, stdin="\n".join(lines).encode())
    await call("consume", "orders", "--partition", "0", "--group", "billing")
    return "billing"


def rows(outcome: Outcome) -> list[tuple[Any, ...]]:
    """Returns topic, partition, current and new offset of a reset or an import."""
    assert outcome.code == 0, outcome.err
    return [(row["topic"], row["partition"], row["current"], row["new"]) for row in json.loads(outcome.out)["offsets"]]


async def offsets_of(call: Call, group: str) -> dict[int, int | None]:
    (described,) = json.loads((await call("groups", "describe", group, "--json")).out)
    return {row["partition"]: row["current"] for row in described["offsets"]}


async def test_groups_are_listed_and_filtered(call: Call, billing: str, broker: RunningBroker) -> None:
    async with member(broker, "shipping", "orders", [0]):
        assert json.loads((await call("groups", "list", "--json")).out) == [
            {"group": "billing", "type": "classic", "protocol_type": "", "state": "Empty"},
            {"group": "shipping", "type": "classic", "protocol_type": "consumer", "state": "Stable"},
        ]
        table = (await call("groups", "list", "--state", "stable")).out
        assert table.splitlines() == [
            "GROUP     TYPE     PROTOCOL TYPE  STATE",
            "shipping  classic  consumer       Stable",
        ]
    assert (await call("groups", "list", "--type", "share")) == (
        0,
        "",
        "No matching groups.\n",
    )
    code, _, err = await call("groups", "list", "--state", "Sleepy")
    assert (code, err.count("\n")) == (2, 1)


async def test_a_group_is_described_with_members_and_lag(call: Call, billing: str, broker: RunningBroker) -> None:
    async with member(broker, billing, "orders", [0, 1]) as member_id:
        outcome = await call("groups", "describe", billing, "--json")
        assert outcome.code == 0, outcome.err
        (described,) = json.loads(outcome.out)
        table = (await call("groups", "describe")).out
    assert (described["type"], described["state"], described["assignor"]) == ("classic", "Stable", "range")
    assert described["coordinator"] == {"id": 1, "host": broker.host, "port": broker.port}
    assert described["members"] == [
        {
            "member": member_id,
            "instance": "shelf-1",
            "client": "reader-01",
            "host": "/127.0.0.1",
            "assignment": {"orders": [0, 1]},
        }
    ]
    owned = {"topic": "orders", "log_end": 10, "member": member_id}
    assert described["offsets"] == [
        {"partition": 0, "current": 10, "lag": 0, **owned},
        {"partition": 1, "current": None, "lag": None, **owned},
    ]
    assert table.startswith(f"billing: classic group, Stable, 1 member, assignor range, coordinator 1 at {broker.host}")
    assert "TOPIC   PARTITION  CURRENT  LOG END  LAG  CLIENT     HOST        MEMBER" in table
    assert "orders:0,1" in table


async def test_a_partition_of_an_unknown_topic_has_no_end_offset(
    call: Call, billing: str, broker: RunningBroker
) -> None:
    async with member(broker, billing, "nowhere", [0]):
        (described,) = json.loads((await call("groups", "describe", billing, "--json")).out)
    ends = {row["topic"]: (row["log_end"], row["lag"]) for row in described["offsets"]}
    assert ends == {"nowhere": (None, None), "orders": (10, 0)}


@pytest.mark.parametrize(
    ("where", "new"),
    [
        (("--to", "earliest"), [0, 0]),
        (("--to", "latest"), [10, 10]),
        (("--to", "4"), [4, 4]),
        (("--to", "99"), [10, 10]),
        (("--to-time", "1970-01-01T00:00:01.006"), [6, 6]),
        (("--to-time", "1m"), [10, 10]),
    ],
)
async def test_a_reset_is_a_dry_run_unless_execute(
    call: Call, billing: str, where: tuple[str, ...], new: list[int]
) -> None:
    arguments = ("groups", "reset-offsets", billing, "--topic", "orders", *where, "--json")
    expected = [("orders", 0, 10, new[0]), ("orders", 1, None, new[1])]
    assert rows(await call(*arguments)) == expected
    assert await offsets_of(call, billing) == {0: 10}
    assert rows(await call(*arguments, "--execute")) == expected
    assert await offsets_of(call, billing) == dict(enumerate(new))


async def test_a_reset_takes_partitions_and_shifts(call: Call, billing: str) -> None:
    shift = ("groups", "reset-offsets", billing, "--topic", "orders:0", "--shift-by", "-4")
    dry = await call(*shift)
    assert (dry.code, dry.err) == (0, "Dry run: nothing was changed. Add --execute to apply.\n")
    assert dry.out.splitlines() == [
        "TOPIC   PARTITION  CURRENT  NEW  LOG END  LAG",
        "orders          0       10    6       10    4",
    ]
    assert (await call(*shift, "--execute")).out.endswith("Reset offsets of group billing.\n")
    assert await offsets_of(call, billing) == {0: 6}
    code, _, err = await call("groups", "reset-offsets", billing, "--topic", "orders", "--shift-by", "1")
    assert (code, err) == (
        1,
        "kbroker: Group 'billing' has no committed offset for orders-1. Use --to instead of --shift-by.\n",
    )
    beyond = await call("groups", "reset-offsets", billing, "--all-topics", "--shift-by", "100", "--json")
    assert rows(beyond) == [("orders", 0, 6, 10)]
    assert beyond.err == "Offset 106 is out of range for orders-0; using 10.\n"


async def test_a_reset_creates_a_new_group(call: Call, billing: str) -> None:
    made = await call("groups", "reset-offsets", "fresh", "--topic", "orders:1", "--to", "5", "--execute", "--json")
    assert rows(made) == [("orders", 1, None, 5)]
    assert await offsets_of(call, "fresh") == {1: 5}


async def test_a_group_with_members_is_not_changed(call: Call, billing: str, broker: RunningBroker) -> None:
    async with member(broker, billing, "orders", [0, 1]):
        for arguments in (
            ("reset-offsets", billing, "--all-topics", "--to", "earliest"),
            ("reset-offsets", billing, "--all-topics", "--to", "earliest", "--execute"),
            ("delete", billing, "--yes"),
        ):
            assert await call("groups", *arguments) == (
                1,
                "",
                (
                    "kbroker: Group 'billing' has 1 member (state Stable). Stop all members first; "
                    "run 'kbroker groups describe billing' to see them.\n"
                ),
            )
        assert await offsets_of(call, billing) == {0: 10, 1: None}


@pytest.mark.parametrize("file_format", ["csv", "json", "kafka"])
async def test_exported_offsets_can_be_imported(call: Call, billing: str, tmp_path: Path, file_format: str) -> None:
    await call("groups", "reset-offsets", billing, "--topic", "orders:1", "--to", "3", "--execute")
    exported = await call("groups", "export-offsets", billing, "--format", file_format)
    assert exported.code == 0
    file = tmp_path / "offsets"
    file.write_text(exported.out)
    dry = await call("groups", "import-offsets", "copy", str(file))
    assert (dry.code, "--execute" in dry.err) == (0, True)
    assert (await call("groups", "describe", "copy")).code == 1
    done = await call("groups", "import-offsets", "copy", "--execute", "--json", stdin=exported.out.encode())
    assert rows(done) == [("orders", 0, None, 10), ("orders", 1, None, 3)]
    again = await call("groups", "export-offsets", "copy", "--format", file_format)
    assert again.out.replace('"copy"', '"billing"') == exported.out
    reset = await call("groups", "reset-offsets", "copy", "--from-file", str(file), "--topic", "orders:1", "--json")
    assert rows(reset) == [("orders", 1, 3, 3)]


async def test_only_the_selected_topics_are_exported(call: Call, billing: str) -> None:
    await call("groups", "reset-offsets", billing, "--topic", "orders:1", "--to", "3", "--execute")
    arguments = ("groups", "export-offsets", billing, "--format", "kafka", "--topic")
    assert (await call(*arguments, "orders:1")).out == "orders,1,3\n"
    assert (await call(*arguments, "other")).out == ""


async def test_a_group_is_deleted(call: Call, billing: str) -> None:
    assert await call("groups", "delete", billing, "--yes") == (0, "Deleted group billing.\n", "")
    assert json.loads((await call("groups", "list", "--json")).out) == []
    assert await call("groups", "delete", billing, "--if-exists", "--yes") == (0, "", "")


async def test_offsets_of_a_topic_are_deleted(call: Call, billing: str) -> None:
    await call("groups", "reset-offsets", billing, "--topic", "orders:1", "--to", "3", "--execute")
    deleted = await call("groups", "delete-offsets", billing, "--topic", "orders:1", "--yes")
    assert deleted.out == "Deleted offsets of group billing for 1 partition.\n"
    assert (await call("groups", "export-offsets", billing, "--format", "kafka")).out == "orders,0,10\n"
    result = json.loads((await call("groups", "delete-offsets", billing, "--topic", "orders", "--yes", "--json")).out)
    assert [(row["partition"], row["error"]) for row in result] == [(0, None), (1, None)]
    assert (await call("groups", "delete-offsets", billing, "--yes")).code == 2
    assert "'nope' does not exist" in (await call("groups", "delete-offsets", "nope", "--topic", "orders", "--yes")).err


async def test_offsets_of_a_topic_that_a_member_reads_are_not_deleted(
    call: Call, billing: str, broker: RunningBroker
) -> None:
    async with member(broker, billing, "orders", [0, 1]):
        code, out, err = await call("groups", "delete-offsets", billing, "--topic", "orders", "--yes")
    assert (code, out) == (1, "")
    assert err == "kbroker: Could not delete the offset of orders-0: GROUP_SUBSCRIBED_TO_TOPIC\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "nope"),
        ("delete", "nope", "--yes"),
        ("export-offsets", "nope"),
        ("reset-offsets", "nope", "--all-topics", "--to", "earliest"),
    ],
)
async def test_an_unknown_group_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    assert await call("groups", *arguments) == (
        1,
        "",
        "kbroker: Group 'nope' does not exist. Run 'kbroker groups list' to see all groups.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("reset-offsets", "g", "--to", "earliest"), 2),
        (("reset-offsets", "g", "--topic", "t"), 2),
        (("reset-offsets", "g", "--topic", "t", "--all-topics", "--to", "earliest"), 2),
        (("reset-offsets", "g", "--topic", "t", "--to", "earliest", "--shift-by", "1"), 2),
        (("reset-offsets", "g", "--topic", "t:x", "--to", "earliest"), 2),
        (("reset-offsets", "g", "--topic", "a b", "--to", "earliest"), 2),
        (("reset-offsets", "g", "--topic", "t", "--to", "soon"), 2),
        (("reset-offsets", "g", "--topic", "t", "--to-time", "soon"), 2),
        (("reset-offsets", "g", "--topic", "nope", "--to", "earliest"), 1),
        (("import-offsets", "g", "no-such-file"), 2),
        (("describe", "g", "--watch", "--interval", "0"), 2),
    ],
)
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...], code: int) -> None:
    outcome = await call("groups", *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "no offsets"), (b"orders,zero,1\n", "Line 1"), (b"\xff\xfe", "UTF-8")]
)
async def test_an_invalid_file_is_one_line(call: Call, billing: str, content: bytes, words: str) -> None:
    code, out, err = await call("groups", "import-offsets", billing, stdin=content)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err


async def test_an_unknown_partition_is_one_line(call: Call, billing: str) -> None:
    code, _, err = await call("groups", "import-offsets", billing, stdin=b"orders,7,1\n")
    assert (code, "partition 7 does not exist" in err) == (1, True)
    code, _, err = await call("groups", "import-offsets", billing, "--topic", "orders:1", stdin=b"orders,0,1\n")
    assert (code, err) == (1, "kbroker: The file has no offset for orders 1\n")


def watching(broker: RunningBroker, *arguments: str) -> list[str]:
    call = [sys.executable, "-m", "kbroker", "groups", "describe", "--watch", "--interval", "0.1", *arguments]
    return [*call, "--bootstrap", f"{broker.host}:{broker.port}"]


async def test_blank_lines_separate_groups_and_their_tables(call: Call) -> None:
    assert await call("groups", "describe") == (0, "", "No groups.\n")
    await call("produce", "orders", stdin=b"tea\n")
    for group in ("a", "b"):
        await call("consume", "orders", "--group", group)
    first, second = (await call("groups", "describe", "a", "b")).out.split("\n\n")
    assert [text.split(":")[0] for text in (first, second)] == ["a", "b"]
    assert [len(text.splitlines()) for text in (first, second)] == [3, 3]


async def test_watching_in_a_pipe_repeats_until_an_interrupt(broker: RunningBroker, call: Call, billing: str) -> None:
    process = await trio.lowlevel.open_process(
        watching(broker, billing, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    seen = b""
    with trio.fail_after(30):
        while seen.count(b"\n") < 1:
            seen += await process.stdout.receive_some()
        await call("produce", "orders", "--partition", "0", stdin=b"more\n")
        while b'"lag": 1' not in seen:
            seen += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert b"Traceback" not in await process.stderr.receive_some()
    (first,) = json.loads(seen.splitlines()[0])
    assert [(row["partition"], row["lag"]) for row in first["offsets"]] == [(0, 0)]


async def test_watching_on_a_terminal_draws_in_place(broker: RunningBroker, call: Call, billing: str) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
    process = await trio.lowlevel.open_process(
        watching(broker, billing), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    async with trio.lowlevel.FdStream(ours) as screen:
        with trio.fail_after(30):
            # The cursor moves up only to redraw.
            while b"\x1b[1A" not in seen:
                seen += await screen.receive_some()
            process.send_signal(signal.SIGINT)
            try:
                while more := await screen.receive_some():
                    seen += more
            except trio.BrokenResourceError:
                pass  # on Linux: the other end of the terminal is closed
            assert await process.wait() == 130
    assert b"billing: classic group, Empty" in seen
    assert b"\x1b[?25h" in seen, "the cursor is shown again"
    assert b"Traceback" not in seen
