"""Exactly once is counted: a driver is killed at random moments and resumed, and so is the broker.

`make kills` does it twenty times; the suite does it twice. KBROKER_KILLS and KBROKER_SEED set number and moments.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compat_tests.process import free_ports, run_kbroker
from kbroker.pipeline.checkpoint_status import read_status
from kbroker.pipeline.definition import AVAILABLE_NOW
from tests.pipeline.topics import read_all

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KBROKER_KILLS", "2"))
RECORDS = 2000 + 2000 * KILLS
STATES = ("state-parquet", "state-delta", "state-copy")
LIMIT_S = 600.0


def batches_ended(directory: Path) -> int:
    """Returns the number of batches that all queries together have ended."""
    ended = 0
    for state in STATES:
        if (directory / state / "kbroker-pipeline.json").exists():
            ended += sum(1 + query.batch for query in read_status(str(directory / state)) if query.batch is not None)
    return ended


class Drivers:
    """Starts drivers of the same pipelines, one after another."""

    def __init__(self, directory: Path, bootstrap: str, jars: list[str]) -> None:
        self.directory = directory
        self._command = [sys.executable, "-m", "tests.pipeline.kill_driver", bootstrap, str(directory), ",".join(jars)]

    def start(self, trigger: str, batch_size: int) -> subprocess.Popen[bytes]:
        with open(self.directory / "driver.log", "ab") as log:
            return subprocess.Popen(
                [*self._command, trigger, str(batch_size)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run_until_batches(self, count: int) -> subprocess.Popen[bytes]:
        """Starts a driver and waits until `count` more batches have ended, or the driver has."""
        wanted = batches_ended(self.directory) + count
        process = self.start("0 seconds", 400)
        deadline = time.monotonic() + LIMIT_S
        try:
            while batches_ended(self.directory) < wanted and process.poll() is None:
                assert time.monotonic() < deadline, (self.directory / "driver.log").read_text()[-4000:]
                time.sleep(0.05)
        except BaseException:
            self.kill(process)
            raise
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills Python and the JVM at once: a JVM that outlives Python would end its batches."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def finish(self) -> None:
        process = self.start(AVAILABLE_NOW, RECORDS)
        try:
            process.wait(LIMIT_S)
            code = process.returncode
        finally:
            self.kill(process)
        assert code == 0, (self.directory / "driver.log").read_text()[-4000:]


def write_events(bootstrap: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce("events", key=str(number % 100), value=str(number))
        producer.poll(0)
    assert producer.flush(120) == 0


def create_topics(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("events", 3), NewTopic("copy", 2)]).values():
        future.result()


def test_nothing_is_lost_or_doubled_by_kill_9(spark: Any, spark_jars: list[str], tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # four starts of Spark may take longer than the limit of other tests
    seed = int(os.environ.get("KBROKER_SEED", random.SystemRandom().randrange(10**6)))
    print(f"KBROKER_SEED={seed}")
    moments = random.Random(seed)
    (port,) = free_ports(1)
    arguments = ("--data-dir", str(tmp_path / "broker"))
    work = tmp_path / "work"
    work.mkdir()
    for kill in range(KILLS):
        with run_kbroker(tmp_path, *arguments, port=port) as (bootstrap, broker):
            if kill == 0:
                create_topics(bootstrap)
                write_events(bootstrap)
                drivers = Drivers(work, bootstrap, spark_jars)
            driver = drivers.run_until_batches(moments.randint(1, 6))
            if kill % 3 == 1:  # The broker first: the driver sees it die.
                broker.kill()
                broker.wait()
            drivers.kill(driver)
            if broker.poll() is None:
                broker.kill()
                broker.wait()
    with run_kbroker(tmp_path, *arguments, port=port) as (bootstrap, _broker):
        drivers.finish()
        copied = read_all(bootstrap, "copy", RECORDS)
    expected = Counter(str(number) for number in range(RECORDS))
    assert Counter(record.value().decode() for record in copied) == expected
    for kind in ("parquet", "delta"):
        rows = spark.read.format(kind).load(str(work / kind)).selectExpr("CAST(value AS STRING) AS v").collect()
        assert Counter(row.v for row in rows) == expected, kind
