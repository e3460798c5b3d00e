"""A Spark driver is killed with SIGKILL at random moments and resumes from its checkpoints."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.scenarios.spark_driver import TABLES

DEADLINE_S = 600.0
RECORDS_BETWEEN_KILLS = 70
PARTITIONS = 2


class Driver:
    """Spark driver in a process group of its own: the Python process and its JVM."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "compat_tests.scenarios.spark_driver", *arguments]
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def kill(self) -> None:
        """Kills both processes at once, so that the JVM cannot end its queries."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_batches(self, count: int, logs: list[Path]) -> None:
        """Waits until the checkpoint directories `logs` hold together `count` batches more than now."""
        target = entries(logs) + count
        deadline = time.monotonic() + DEADLINE_S
        while entries(logs) < target:
            assert self.process.poll() is None, f"the driver ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no new batches:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.001)


def entries(logs: list[Path]) -> int:
    return sum(1 for log in logs if log.is_dir() for entry in log.iterdir() if entry.name.isdigit())


@pytest.mark.slow
def test_a_killed_driver_loses_nothing_and_writes_each_record_once_into_tables(
    bootstrap: str,
    broker_name: str,
    topic: str,
    spark_connector_jars: list[Path],
    table_jars: list[Path],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark")
    faulthandler.cancel_dump_traceback_later()  # several starts of Spark; each wait has its own deadline
    kills: int = pytestconfig.getoption("--spark-kills") or (1 if broker_name == "apache-kafka" else 2)
    seed = random.randrange(2**32)
    print("seed", seed)  # Shown if the test fails.
    choice = random.Random(seed)
    for name in (topic, f"{topic}-copy"):
        create_topic(bootstrap, name, PARTITIONS)
    queries = [tmp_path / f"to-{name}" / "checkpoint" for name in (*TABLES, "topic")]
    jars = ",".join(map(str, [*spark_connector_jars, *table_jars]))
    arguments = [bootstrap, topic, f"{topic}-copy", str(tmp_path), jars]
    written = 0
    for number in range(kills):
        produce_numbers(bootstrap, topic, range(written, written + RECORDS_BETWEEN_KILLS), PARTITIONS)
        written += RECORDS_BETWEEN_KILLS
        driver = Driver([*arguments, "run"], tmp_path / f"driver-{number}.log")
        try:
            # A batch writes its offsets before its records, and its commit after them.
            step = choice.choice(["offsets", "commits"])
            driver.wait_for_batches(choice.randint(1, 4), [query / step for query in queries])
        finally:
            driver.kill()
    last = Driver([*arguments, "finish"], tmp_path / "driver-last.log")
    try:
        assert last.process.wait(DEADLINE_S) == 0, last.log.read_text()[-4000:]
    finally:
        if last.process.poll() is None:
            last.kill()
    copies = json.loads((tmp_path / "copies.json").read_text())
    for kind in TABLES:
        assert copies[kind] == list(range(written)), kind
    # Spark's own sink writes at least once: a batch that was killed is written again.
    assert sorted(set(copies["topic"])) == list(range(written))
