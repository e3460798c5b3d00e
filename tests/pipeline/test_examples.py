"""The files in examples/pipelines are valid, and each kind runs from its file, by the command line or spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from compat_tests.scenarios.spark_kafka import SHORT_LIVED_JVM
from kbroker.pipeline.definition import AVAILABLE_NOW, KINDS, read_pipeline
from kbroker.testing import Broker
from tests.pipeline.topics import read_all

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": SHORT_LIVED_JVM}
EXAMPLES = sorted((ROOT / "examples" / "pipelines").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid(path: Path) -> None:
    assert read_pipeline(path).name == path.stem


def test_each_kind_has_an_example() -> None:
    assert {read_pipeline(path).kind for path in EXAMPLES} == set(KINDS)


class Scene:
    """A copy of the examples in a directory, for a broker of the test."""

    def __init__(self, directory: Path, broker: Broker, jars: list[str]) -> None:
        self.directory = directory
        self._jars = jars
        self._options = ["--master", "local[2]", *(word for jar in jars for word in ("--jars", jar))]
        shutil.copytree(ROOT / "examples" / "pipelines", directory, dirs_exist_ok=True)
        for path in [*directory.glob("*.toml"), *directory.glob("*.py")]:
            path.write_text(path.read_text().replace("127.0.0.1:9092", broker.bootstrap))

    def command(self, name: str, file: str, *options: str) -> list[str]:
        spark = self._options if name in ("run", "explain") else []
        return [sys.executable, "-m", "kbroker", "pipeline", name, str(self.directory / file), *spark, *options]

    def call(self, name: str, file: str, *options: str) -> str:
        result = subprocess.run(
            self.command(name, file, *options), env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def submit(self, file: str, *arguments: str) -> str:
        """Runs a program as its docstring says, with local jars instead of packages. Returns its output."""
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]"]
        command += ["--jars", ",".join(self._jars), "--conf", "spark.ui.enabled=false"]
        environment = {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        result = subprocess.run(
            [*command, file, *arguments],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture
def scene(broker: Broker, tmp_path: Path, spark_jars: list[str]) -> Scene:
    return Scene(tmp_path, broker, spark_jars)


@pytest.mark.slow
def test_an_archive_runs_once_until_sigterm_and_shows_its_status(
    scene: Scene, broker: Broker, produce: Callable[..., None]
) -> None:
    broker.create_topic("orders", 2)
    produce("orders", [(None, '{"id": 1}')] * 100)
    scene.call("validate", "archive.toml")
    shown = scene.call("run", "archive.toml", "--once")
    assert "archive: batch 0, 100 rows in, 100 out, " in shown
    assert "lag orders 0" in shown
    produce("orders", [(None, '{"id": 2}')] * 10)
    (status,) = json.loads(scene.call("status", "archive.toml", "--json"))
    assert (status["query"], status["batch"], status["lag"]) == ("main", 0, {"orders": 10})
    assert sum(status["offsets"]["orders"].values()) == 100

    command = scene.command("run", "archive.toml", "--metrics-listen", "127.0.0.1:0")
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            metrics = read_metrics_after_a_batch(process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate()
        finally:
            process.kill()
    assert 'kbroker_pipeline_rows_in_total{pipeline="archive",query="archive"} 10' in metrics
    assert process.returncode == 0
    assert "Pipeline archive has stopped." in errors
    assert "Traceback" not in errors


def read_metrics_after_a_batch(process: subprocess.Popen[str]) -> list[str]:
    """Waits for the line of a batch, and returns what /metrics shows then."""
    assert process.stdout is not None
    assert process.stderr is not None
    url = next(line.split()[-1] for line in process.stderr if line.startswith("Serving metrics on "))
    assert "batch 1, 10 rows in" in process.stdout.readline()
    with urllib.request.urlopen(url) as response:
        text: str = response.read().decode()
    return text.splitlines()


@pytest.mark.slow
def test_archive_transform_and_replay_run_from_their_files(
    scene: Scene, spark: Any, broker: Broker, produce: Callable[..., None]
) -> None:
    from kbroker.pipeline.running import explain_pipeline, start_pipeline

    for topic in ("orders", "orders-again", "orders-bad", "totals"):
        broker.create_topic(topic, 2)
    produce("orders", [("a", '{"id": 1, "customer": "ann", "amount": 2}')] * 3, partition=0, timestamp=60_000)
    for partition in (0, 1):
        late = json.dumps({"id": 20 + partition, "customer": "bob", "amount": 3})
        produce("orders", [("b", late)], partition=partition, timestamp=86_400_000)
    produce("orders", [("c", "rubbish")], partition=1, timestamp=86_400_000)
    replay = scene.directory / "replay.toml"
    replay.write_text(replay.read_text().replace("speed = 2.0", "speed = 1e9"))  # a day passes between the records
    rows_out: dict[str, int] = {}
    for name in ("archive", "transform", "replay"):
        pipeline = replace(read_pipeline(scene.directory / f"{name}.toml"), trigger=AVAILABLE_NOW)
        plans = explain_pipeline(spark, pipeline)
        assert set(plans) == ({"main", "dead-letters"} if name == "transform" else {"main"})
        assert all("== Physical Plan ==" in plan for plan in plans.values())
        jobs = start_pipeline(spark, pipeline)
        while any(job.is_active for job in jobs):
            time.sleep(0.05)
        assert [job.failure() for job in jobs] == [None for _ in jobs]
        rows_out |= {job.name: sum(report.rows_out or 0 for report in job.reports()) for job in jobs}
    assert rows_out == {"archive": 6, "transform": 1, "transform dead letters": 1, "replay": 6}
    (total,) = read_all(broker.bootstrap, "totals", 1)
    minute = json.loads(total.value())
    assert (total.key(), minute["region"], minute["orders"], minute["amount"]) == (b"eu", "eu", 1, 2.0)
    (letter,) = read_all(broker.bootstrap, "orders-bad", 1)
    assert letter.value() == b"rubbish"
    assert {record.value() for record in read_all(broker.bootstrap, "orders-again", 6)} >= {b"rubbish"}
    (status,) = json.loads(scene.call("status", "replay.toml", "--json"))
    assert status["records"] == 6


@pytest.mark.slow
def test_the_sink_and_the_segment_files_run_by_spark_submit(tmp_path: Path, spark_jars: list[str]) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        scene = Scene(tmp_path, broker, spark_jars)
        broker.create_topic("orders", 2)
        broker.create_topic("orders-copy", 2)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(5):
            producer.produce("orders", f"v{number}", "ab"[number % 2], headers=[("h", b"x")])
        assert producer.flush(60) == 0
        scene.submit("exactly_once_sink.py")
        copied = read_all(broker.bootstrap, "orders-copy", 5)
        assert sorted(record.value() for record in copied) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
        assert {tuple(record.headers()) for record in copied} == {(("h", b"x"),)}
    shown = scene.submit("segments.py", "data")  # the broker has stopped
    assert [line.split("|")[1:3] for line in shown.splitlines() if line.startswith("|  ")] == [
        ["  a", "    3"],
        ["  b", "    2"],
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[sink]", "[sinks]", "archive.toml:1: sink is missing: the table: format and path"),
        ("127.0.0.1:9092", "127.0.0.1:1", "No Kafka broker answers at 127.0.0.1:1: "),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(old: str, new: str, reason: str, tmp_path: Path) -> None:
    source = (ROOT / "examples" / "pipelines" / "archive.toml").read_text()
    (tmp_path / "archive.toml").write_text(source.replace(old, new))
    name: Any = "status" if "9092" in old else "validate"
    if name == "status":
        (tmp_path / "state" / "archive" / "main" / "offsets").mkdir(parents=True)
        (tmp_path / "state" / "archive" / "main" / "commits").mkdir()
        (tmp_path / "state" / "archive" / "kbroker-pipeline.json").write_text("{}")
        batch = 'v1\n{"batchTimestampMs": 1}\n{"orders": {"0": 3}}'
        (tmp_path / "state" / "archive" / "main" / "offsets" / "0").write_text(batch)
        (tmp_path / "state" / "archive" / "main" / "commits" / "0").touch()
    command = [sys.executable, "-m", "kbroker", "pipeline", name, str(tmp_path / "archive.toml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
