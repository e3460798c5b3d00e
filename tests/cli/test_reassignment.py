"""`kbroker cluster balance`, `drain`, `replace`, `reassign` and `kbroker topics replicas` against a single broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.cli.commands.reassignment import RunSettings, is_confirmed
from kbroker.cli.reassignment_report import print_plan, progress_text
from kbroker.client.reassignment.execution import RunProgress
from kbroker.client.reassignment.layout import ClusterLayout, PartitionLayout
from kbroker.client.reassignment.planner import plan_drain
from tests.cli.conftest import Call
from tests.cli.test_confirm import Terminal


async def test_a_balanced_cluster_has_nothing_to_move(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "3")
    assert await call("cluster", "balance") == (0, "Nothing to move.\n", "")
    plan = json.loads((await call("cluster", "balance", "--json")).out)
    assert plan["moves"] == []
    assert [(broker["broker"], broker["after"]["replicas"]) for broker in plan["brokers"]] == [(1, 3)]
    assert await call("cluster", "balance", "--cancel") == (0, "No partition is moving.\n", "")
    assert await call("topics", "replicas", "orders", "1") == (0, "Nothing to move.\n", "")
    assert await call("cluster", "moves") == (0, "No partition is moving.\n", "")
    assert await call("cluster", "moves", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("cluster", "drain", "1"), "Broker 1 is the only live broker"),
        (("cluster", "drain", "7"), "Broker 7 does not exist"),
        (("cluster", "replace", "1", "7"), "Broker 7 does not exist"),
        (("cluster", "replace", "1", "1"), "Broker 1 cannot replace itself"),
        (("topics", "replicas", "orders", "2"), "Topic 'orders' cannot have 2 replicas: only 1 broker is alive"),
        (("topics", "replicas", "nope", "1"), "Topic 'nope' does not exist"),
    ],
)
async def test_bad_input_is_one_line(call: Call, arguments: tuple[str, ...], problem: str) -> None:
    await call("topics", "create", "orders")
    code, out, err = await call(*arguments, "--yes")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"kbroker: {problem}")


def entry(topic: object = "orders", partition: object = 0, replicas: object = (1,), **fields: object) -> str:
    return json.dumps({"partitions": [{"topic": topic, "partition": partition, "replicas": replicas, **fields}]})


async def test_replicas_of_a_file_that_are_so_already_do_not_move(call: Call, tmp_path: Path) -> None:
    await call("topics", "create", "orders")
    plan, saved = tmp_path / "plan.json", tmp_path / "saved.json"
    plan.write_text(entry(log_dirs=["any"]))
    assert await call("cluster", "reassign", str(plan), "--save", str(saved)) == (0, "Nothing to move.\n", "")
    assert json.loads(saved.read_text()) == {"version": 1, "partitions": []}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "FILE must contain"),
        ("{}", "FILE must contain"),
        ('{"partitions": [1]}', "FILE must contain"),
        ('{"partitions": []}', "FILE has no partitions"),
        (entry(topic=1), "FILE must contain"),
        (entry(partition="0"), "FILE must contain"),
        (entry(replicas=["1"]), "FILE must contain"),
        (entry(replicas=[]), "FILE must contain"),
        (entry(replicas=[1, 1]), "FILE must contain"),
        (entry(log_dirs=["/disk2"]), "FILE must contain"),
        (json.dumps({"partitions": json.loads(entry())["partitions"] * 2}), "FILE has a partition twice"),
        (entry(partition=7), "Partition orders-7 does not exist"),
        (entry(topic="nope"), "Partition nope-0 does not exist"),
        (entry(replicas=[2]), "Broker 2 does not exist"),
    ],
)
async def test_a_bad_file_is_one_line(call: Call, tmp_path: Path, content: str, problem: str) -> None:
    await call("topics", "create", "orders")
    path = tmp_path / "plan.json"
    path.write_text(content)
    code, out, err = await call("cluster", "reassign", str(path), "--yes")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.replace(str(path), "FILE").startswith(f"kbroker: {problem}")


async def test_fewer_replicas_than_producers_need_are_refused(call: Call) -> None:
    await call("topics", "create", "orders", "--config", "min.insync.replicas=2")
    code, _out, err = await call("topics", "replicas", "orders", "1", "--yes")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("kbroker: Topic 'orders' has min.insync.replicas=2")


@pytest.mark.parametrize("arguments", [("drain", "x"), ("drain",), ("replace", "1"), ("balance", "--throttle", "0")])
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call("cluster", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (RunProgress(0, 1, 0, 0, 0.0), "Moved 0 of 1 partition"),
        (RunProgress(1, 4, 0, 4096, 2.0), "Moved 1 of 4 partitions, 0 B of 4.0 KiB, 0 B/s"),
        (RunProgress(1, 4, 1024, 4096, 2.0), "Moved 1 of 4 partitions, 1.0 KiB of 4.0 KiB, 512 B/s, 6 s left"),
        (RunProgress(1, 4, 1024, 1 << 20, 1.0), "Moved 1 of 4 partitions, 1.0 KiB of 1.0 MiB, 1.0 KiB/s, 17 min left"),
        (RunProgress(1, 4, 1024, 1 << 30, 1.0), "Moved 1 of 4 partitions, 1.0 KiB of 1.0 GiB, 1.0 KiB/s, 291 h left"),
    ],
)
def test_progress_is_one_line(progress: RunProgress, text: str) -> None:
    assert progress_text(progress) == text


def test_on_a_terminal_the_answer_decides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = RunSettings("toy:9092", None, 5, False, False)
    monkeypatch.setattr("sys.stdin", Terminal("y\nn\n"))
    assert is_confirmed("Run?", settings)
    assert not is_confirmed("Run?", settings)
    assert capsys.readouterr().err == "Run? [y/N]: Run? [y/N]: Nothing was changed.\n"


def test_a_plan_shows_moves_and_the_load_of_each_broker(capsys: pytest.CaptureFixture[str]) -> None:
    partitions = tuple(
        PartitionLayout("orders", number, replicas, replicas, replicas[0], 2048)
        for number, replicas in enumerate([(1, 2), (2, 1), (2, 3)])
    )
    layout = ClusterLayout({1: "a", 2: "b", 3: "a"}, partitions)
    print_plan(plan_drain(layout, 1), layout.racks)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   PARTITION  REPLICAS  NEW REPLICAS  COPIES",
        "orders          0  1,2       3,2           2.0 KiB",
        "orders          1  2,1       2,3           2.0 KiB",
        "",
        "BROKER  RACK  LEADERS  REPLICAS  SIZE",
        "     1  a     1 -> 0   2 -> 0    4.0 KiB -> 0 B",
        "     2  b     2 -> 2   3 -> 3    6.0 KiB -> 6.0 KiB",
        "     3  a     0 -> 1   1 -> 3    2.0 KiB -> 6.0 KiB",
        "",
        "Leaders on a broker: 0 to 2 before, 0 to 2 after.",
        "Replicas on a broker: 1 to 3 before, 0 to 3 after.",
        "Size on a broker: 2.0 KiB to 6.0 KiB before, 0 B to 6.0 KiB after.",
        "2 partitions: 2 replicas to copy (4.0 KiB), 2 to remove, 0 only to reorder.",
    ]
