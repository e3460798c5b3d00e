"""The exactly-once sink on Apache Kafka 4.1, which is the judge of what transactions mean."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from kbroker.client.address import parse_addresses
from kbroker.client.admin.transactions import abort_transaction, list_transactions
from kbroker.client.cluster import open_cluster
from kbroker.client.failures import BrokerRefusal
from kbroker.errors import UserError
from tests.pipeline.committed_records import values_of

pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("numpy", reason="needs numpy")

from kbroker.pipeline.two_phase.commit import BatchCommitter
from kbroker.pipeline.two_phase.decision import TaskResult
from kbroker.pipeline.two_phase.task import TaskPlan
from tests.pipeline.crashing_driver import ROWS, rows_of, run_locally, write_batch


@pytest.fixture(scope="module")
def apache(java: str, judge_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("apache")
    with run_apache_kafka(JavaTools(java, judge_classpath, directory), directory) as bootstrap:
        yield bootstrap


@pytest.fixture
def topic() -> str:
    return f"out-{uuid4().hex[:8]}"


def crash(bootstrap: str, topic: str, directory: Path, step: str, count: int = 0) -> None:
    arguments = [bootstrap, topic, str(directory), "0", "2", step, str(count)]
    command = [sys.executable, "-m", "tests.pipeline.crashing_driver", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def abort(bootstrap: str, number: int) -> None:
    async def run() -> None:
        async with open_cluster(parse_addresses(bootstrap)) as cluster:
            opened = await list_transactions(cluster, states=["Ongoing"])
            assert await abort_transaction(cluster, opened[number].transactional_id)

    trio.run(run)


@pytest.mark.parametrize("step", ["written", "decided", "ended", "finished"])
def test_a_killed_driver_loses_and_doubles_nothing(apache: str, topic: str, tmp_path: Path, step: str) -> None:
    crash(apache, topic, tmp_path, step)
    assert write_batch(apache, topic, str(tmp_path), 0, 3) == (ROWS if step == "written" else 0)
    write_batch(apache, topic, str(tmp_path), 1, 2)
    assert values_of(apache, topic, partitions=1) == rows_of(0) + rows_of(1)


def test_a_late_attempt_is_refused_and_leases_go_on(apache: str, topic: str, tmp_path: Path) -> None:
    committer = BatchCommitter(apache, "late", tmp_path, {"topic": topic})
    plans: list[TaskPlan] = []

    def keep_plan(plan: TaskPlan) -> list[TaskResult]:
        plans.append(plan)
        return run_locally(len(plans) - 1, 1)(plan)

    for batch_id in range(2):
        committer.write(batch_id, keep_plan)
    with pytest.raises(BrokerRefusal, match="INVALID_PRODUCER_EPOCH"):
        run_locally(1, 1)(plans[1])
    committer.write(2, keep_plan)
    committer.close()
    assert values_of(apache, topic, partitions=1) == rows_of(0) + rows_of(1) + rows_of(2)


def test_transactions_lost_after_the_decision_are_noticed(apache: str, topic: str, tmp_path: Path) -> None:
    crash(apache, topic, tmp_path, "decided")
    abort(apache, 1)
    with pytest.raises(UserError, match=r"aborted 1 of 2 transactions \(30 records, of tasks 1\)"):
        write_batch(apache, topic, str(tmp_path), 0, 2)
    assert values_of(apache, topic, partitions=1) == rows_of(0)[::2]
    (tmp_path / "decision.json").unlink()


def test_a_batch_that_lost_all_its_transactions_is_written_again(apache: str, topic: str, tmp_path: Path) -> None:
    crash(apache, topic, tmp_path, "decided")
    abort(apache, 0)
    abort(apache, 0)
    assert write_batch(apache, topic, str(tmp_path), 0, 2) == ROWS
    assert values_of(apache, topic, partitions=1) == rows_of(0)
