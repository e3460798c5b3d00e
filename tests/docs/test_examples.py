"""Every example of docs/cli.md, which is every example of `--help`, is run: those of one command after the other."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import trio

from kbroker.cli.command import Command, walk
from kbroker.cli.main import kbroker, main
from kbroker.testing import Broker
from tests.broker.transactions import TransactionalProducer
from tests.broker.wire import connect
from tests.docs.shell import Shell

pytestmark = pytest.mark.slow

EXAMPLES = [each.call for _, command in walk(kbroker) if isinstance(command, Command) for each in command.examples]
NOT_RUN = {"kbroker serve --listen 0.0.0.0:9092 --advertise broker.example.com:9092"}  # on every interface
SERVING = [call for call in EXAMPLES if call.startswith("kbroker serve") and call not in NOT_RUN]
ENDLESS = [call for call in EXAMPLES if {"--follow", "--watch"} & set(shlex.split(call))]
OFFLINE = [call for call in EXAMPLES if call.startswith(("kbroker dump-log", "kbroker metadata"))]
ONLINE = [call for call in EXAMPLES if call not in {*NOT_RUN, *SERVING, *ENDLESS, *OFFLINE}]

TOPICS = {"orders": 3, "customers": 1, "greetings": 1, "copy": 6}
GROUPS = ("billing", "shipping")
TRANSACTIONS = ("payments", "refunds")


class Scene:
    """What the examples speak of: topics with records, groups that have read them, files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = Broker(data_dir=directory / "kbroker-data").start()
        (directory / ".config" / "fish" / "completions").mkdir(parents=True)

    def prepare(self, call: str) -> None:
        for topic, partitions in TOPICS.items():
            if topic in self.broker.topics and call.startswith(f"kbroker topics create {topic}"):
                self.broker.delete_topic(topic)
            elif topic not in self.broker.topics and not call.startswith(f"kbroker topics create {topic}"):
                self.broker.create_topic(topic, partitions)
        Path("orders.txt").write_text("1:tea\n2:milk\n3:sugar\n")
        if "orders" in self.broker.topics:
            self.run("produce orders orders.txt --key-separator :")
            for group in GROUPS:
                self.run(f"consume orders --group {group}")
            with open("billing.csv", "w") as file, redirect_stdout(file):
                self.run("groups export-offsets billing")
        if call.startswith("kbroker transactions"):
            trio.run(self._begin_transactions)

    async def _begin_transactions(self) -> None:
        async with connect(self.broker.port) as client:
            for name in TRANSACTIONS:
                producer = await TransactionalProducer(client, name).init()
                assert await producer.add("orders", 0) == [0]

    def run(self, arguments: str) -> None:
        call_in_process(shlex.split(arguments))


def call_in_process(arguments: list[str]) -> None:
    """Starting Python for each would take most of the time."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0, arguments


@pytest.fixture(scope="module")
def made_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("examples"))
    yield scene
    scene.broker.close()


@pytest.fixture
def scene(made_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(made_scene.directory)
    monkeypatch.setenv("HOME", str(made_scene.directory))
    monkeypatch.setenv("KBROKER_BOOTSTRAP", made_scene.broker.bootstrap)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    return made_scene


@pytest.mark.parametrize("call", ONLINE)
def test_the_example_runs(call: str, scene: Scene) -> None:
    scene.prepare(call)
    words = shlex.split(call)
    if words[0] == "kbroker" and not {"|", ">"} & set(words) and words[1] != "produce":
        call_in_process(words[1:])
    else:
        subprocess.run(["bash", "-ec", call], input="typed in\n", text=True, check=True, timeout=60)


@pytest.mark.parametrize("call", ENDLESS)
def test_the_example_runs_until_ctrl_c(call: str, scene: Scene) -> None:
    scene.prepare(call)
    process = subprocess.Popen(shlex.split(call), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        while not select.select([process.stdout], [], [], 0.2)[0]:
            scene.run("produce orders orders.txt --key-separator :")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (0, 130)


def test_the_examples_for_a_stopped_broker_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.prepare("")
    scene.broker.stop()
    for call in OFFLINE:
        call_in_process(shlex.split(call)[1:])
    scene.broker.start()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", scene.broker.bootstrap)


@pytest.mark.parametrize("call", SERVING)
def test_the_example_serves(call: str, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")
    shell = Shell(tmp_path)
    try:
        shell.run(call.replace("/tmp/orders", str(tmp_path / "orders")))
        shell.run("kbroker cluster describe")
        shell.stop_broker()
    finally:
        shell.close()


def test_every_example_is_run() -> None:
    assert len(ONLINE) + len(ENDLESS) + len(OFFLINE) + len(SERVING) + len(NOT_RUN) == len(EXAMPLES) > 50
