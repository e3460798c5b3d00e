"""Every example of docs/cli.md, which is every example of `--help`, is run, each in a scene of its own."""

from __future__ import annotations

import io
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import trio

from kbroker.cli.command import Command, walk_commands
from kbroker.cli.main import kbroker, main
from kbroker.testing import Broker
from tests.broker.transactions import TransactionalProducer
from tests.broker.wire import connect
from tests.docs.pages import ROOT
from tests.docs.shell import Shell

pytestmark = pytest.mark.slow

EXAMPLES = [
    example.call
    for _, command in walk_commands(kbroker)
    if isinstance(command, Command)
    for example in command.examples
]
NOT_RUN = {
    "kbroker serve --listen 0.0.0.0:9092 --advertise broker.example.com:9092",  # on every interface
    "kbroker topics copy orders orders --to staging.example.com:9092 --since 1h",  # to another machine
    "kbroker transactions abort-hanging orders --partition 0 --start-offset 1234",  # tests/cli/test_transactions.py
    *(  # tests/cluster/test_growth.py: they need several brokers
        call
        for call in EXAMPLES
        if call.startswith(("kbroker cluster drain", "kbroker cluster replace", "kbroker topics replicas"))
    ),
    *(call for call in EXAMPLES if call.startswith("kbroker users")),  # tests/cli/test_users.py: they ask for passwords
    *(call for call in EXAMPLES if call.startswith("kbroker tokens")),  # tests/cli/test_tokens.py: they need a login
    *(call for call in EXAMPLES if call.startswith("kbroker pipeline") and " validate " not in call),  # tests/pipeline
}
SERVING = [call for call in EXAMPLES if call.startswith("kbroker serve") and call not in NOT_RUN]
ENDLESS = [call for call in EXAMPLES if {"--follow", "--watch"} & set(shlex.split(call))]
OFFLINE = [call for call in EXAMPLES if call.startswith(("kbroker dump-log", "kbroker metadata"))]
ONLINE = [call for call in EXAMPLES if call not in {*NOT_RUN, *SERVING, *ENDLESS, *OFFLINE}]

TOPICS = {"orders": 3, "customers": 1, "greetings": 1, "copy": 6, "counts": 1, "perf-test": 1}
GROUPS = ("billing", "shipping")
TRANSACTIONS = ("payments", "refunds")
OFFSETS = '{"partitions": [{"topic": "orders", "partition": 0, "offset": 1}], "version": 1}'
PLAN = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}'
ORDERS = "1:tea\n2:milk\n3:sugar\n4:bread\n"  # the keys spread over all partitions


class Terminal(io.StringIO):
    """A person who says yes."""

    def isatty(self) -> bool:
        return True


class Scene:
    """What the examples speak of: topics with records, groups that have read them, files."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(data_dir=directory / "kbroker-data", acls=[], super_users="User:ANONYMOUS").start()
        (directory / ".config" / "fish" / "completions").mkdir(parents=True)
        (directory / "orders.txt").write_text(ORDERS)
        (directory / "offsets.json").write_text(OFFSETS)
        (directory / "plan.json").write_text(PLAN)
        (directory / "broker.properties").write_text("log.retention.ms=3600000\n")
        (directory / ".config" / "kbroker").mkdir()
        profile = f'[profiles.staging]\nbootstrap = "{self.broker.bootstrap}"\n'
        (directory / ".config" / "kbroker" / "config.toml").write_text(profile)
        shutil.copy(ROOT / "examples" / "pipelines" / "archive.toml", directory)

    def prepare(self, call: str) -> None:
        for topic, partitions in TOPICS.items():
            if not call.startswith(f"kbroker topics create {topic}"):
                self.broker.create_topic(topic, partitions)
        if "orders" in self.broker.topics:
            self.produce()
            for group in GROUPS:
                self.run(f"consume orders --group {group}")
            with open("billing.csv", "w") as file, redirect_stdout(file):
                self.run("groups export-offsets billing")
        if call.startswith("kbroker acls"):
            self.run("acls allow User:alice write --topic orders")
        if call.startswith("kbroker transactions"):
            trio.run(self._begin_transactions)

    async def _begin_transactions(self) -> None:
        async with connect(self.broker.port) as client:
            for name in TRANSACTIONS:
                producer = await TransactionalProducer(client, name).init()
                assert await producer.add("orders", 0) == [0]

    def produce(self) -> None:
        self.run("produce orders orders.txt --key-separator :")

    def run(self, arguments: str) -> None:
        call_in_process(shlex.split(arguments))


def call_in_process(arguments: list[str]) -> None:
    """Starting Python for each would take most of the time."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0, arguments


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """One for each example: some delete what others read."""
    made = Scene(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("KBROKER_BOOTSTRAP", made.broker.bootstrap)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    yield made
    made.broker.close()


@pytest.mark.parametrize("call", ONLINE)
def test_the_example_runs(call: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.prepare(call)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
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
            scene.produce()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (0, 130)


@pytest.mark.parametrize("call", OFFLINE)
def test_the_example_for_a_stopped_broker_runs(call: str, scene: Scene) -> None:
    scene.prepare(call)
    scene.broker.stop()
    if call.startswith("kbroker metadata import"):
        scene.run("metadata export metadata.json --data-dir kbroker-data")
    call_in_process(shlex.split(call)[1:])


@pytest.mark.parametrize("call", SERVING)
def test_the_example_serves(call: str, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("listeners=PLAINTEXT://127.0.0.1:9092\n")
    shell = Shell(tmp_path)
    try:
        shell.run(call)
        login = " --command-config kbroker-data/secure/client.properties" if "--secure" in call else ""
        shell.run(f"kbroker cluster describe{login}")
        shell.stop_broker()
    finally:
        shell.close()


def test_every_example_is_run() -> None:
    assert len(ONLINE) + len(ENDLESS) + len(OFFLINE) + len(SERVING) + len(NOT_RUN) == len(EXAMPLES) > 50
