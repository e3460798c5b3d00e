"""`kbroker groups` against both brokers, for groups of both protocols; its offset files and those of Kafka's tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compat_tests.scenarios.conftest import Call, reading_member
from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.tool_server import ToolServer

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def created(bootstrap: str, topic: str) -> str:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    return topic


@pytest.fixture
def group(call: Call, created: str) -> str:
    """Returns a group with the topic's name, at the end of one partition and at offset 3 of the other."""
    offsets = f"{created},0,10\n{created},1,3\n"
    assert call("groups", "import-offsets", created, "--execute", stdin=offsets.encode()).code == 0
    return created


def current(call: Call, group: str) -> dict[int, tuple[int, int]]:
    """Returns partition -> committed offset and lag."""
    (described,) = call("groups", "describe", group, "--json").json
    return {offset["partition"]: (offset["current"], offset["lag"]) for offset in described["offsets"]}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_members_and_lag_and_cannot_be_reset(
    call: Call, bootstrap: str, created: str, protocol: str
) -> None:
    with reading_member(bootstrap, created, protocol, count=20):
        produce_numbers(bootstrap, created, range(2), 2)
        (described,) = call("groups", "describe", created, "--json").json
        assert (described["type"], described["state"]) == (protocol, "Stable")
        assert described["coordinator"]["id"] == 1
        (only,) = described["members"]
        assert (only["client"], only["host"]) == ("test-client", "/127.0.0.1")
        assert only["assignment"] == {created: [0, 1]}
        assert [
            (offset["partition"], offset["current"], offset["log_end"], offset["lag"], offset["member"])
            for offset in described["offsets"]
        ] == [(number, 10, 11, 1, only["member"]) for number in (0, 1)]
        listed = call("groups", "list", "--state", "stable", "--type", protocol, "--json").json
        assert created in [row["group"] for row in listed]
        other = "consumer" if protocol == "classic" else "classic"
        assert created not in [row["group"] for row in call("groups", "list", "--type", other, "--json").json]
        for arguments in (
            ("reset-offsets", created, "--all-topics", "--to", "earliest", "--execute"),
            ("delete", created, "--yes"),
        ):
            refused = call("groups", *arguments)
            assert (refused.code, refused.err.count("\n"), "Stop all members first" in refused.err) == (1, 1, True)
    moved = call("groups", "reset-offsets", created, "--all-topics", "--shift-by", "-4", "--execute", "--json").json
    assert [(offset["current"], offset["new"]) for offset in moved["offsets"]] == [(10, 6), (10, 6)]
    assert current(call, created) == {0: (6, 5), 1: (6, 5)}
    assert call("groups", "delete", created, "--yes").code == 0
    assert created not in [row["group"] for row in call("groups", "list", "--json").json]
    gone = call("groups", "describe", created)
    assert (gone.code, gone.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("where", "new"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 10),
        (("--to", "7"), 7),
        (("--to", "99"), 10),
        (("--to-time", "1h"), 0),
    ],
)
def test_a_reset_is_planned_and_then_executed(call: Call, group: str, where: tuple[str, ...], new: int) -> None:
    reset = ("groups", "reset-offsets", group, "--topic", f"{group}:1", *where, "--json")
    for options in ((), ("--execute",)):
        assert current(call, group)[1] == (3, 7)
        planned = call(*reset, *options).json
        assert [(offset["partition"], offset["current"], offset["new"]) for offset in planned["offsets"]] == [
            (1, 3, new)
        ]
    assert current(call, group) == {0: (10, 0), 1: (new, 10 - new)}


def test_offset_files_are_compatible_with_kafkas_tool(
    call: Call, bootstrap: str, group: str, tool_server: ToolServer, tmp_path: Path
) -> None:
    def reset(*options: str) -> str:
        arguments = ("--bootstrap-server", bootstrap, "--reset-offsets", *options)
        return tool_server.run(GROUPS, *arguments)

    ours = tmp_path / "ours.csv"
    ours.write_text(call("groups", "export-offsets", group, "--format", "kafka").out)
    call("groups", "reset-offsets", group, "--all-topics", "--to", "earliest", "--execute")
    reset("--from-file", str(ours), "--group", group, "--execute")
    assert current(call, group) == {0: (10, 0), 1: (3, 7)}
    theirs = reset("--export", "--to-offset", "5", "--topic", group, "--group", group, "--dry-run")
    imported = call("groups", "import-offsets", f"{group}-2", "--execute", "--json", stdin=theirs.encode()).json
    assert [offset["new"] for offset in imported["offsets"]] == [5, 5]


@pytest.mark.parametrize("file_format", ["csv", "json", "kafka"])
def test_offsets_are_copied_from_group_to_group(call: Call, group: str, file_format: str) -> None:
    exported: Any = call("groups", "export-offsets", group, "--format", file_format).out
    assert call("groups", "import-offsets", f"{group}-2", "--execute", stdin=exported.encode()).code == 0
    assert current(call, f"{group}-2") == current(call, group)
