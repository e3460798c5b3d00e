"""The exactly-once sink without Spark: whatever dies at whichever step, every record is committed once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from compat_tests.process import run_kbroker
from kbroker.client import transactional_producing
from kbroker.client.address import parse_addresses
from kbroker.client.admin.transactions import abort_transaction, list_transactions
from kbroker.client.cluster import open_cluster
from kbroker.client.failures import BrokerRefusal
from kbroker.errors import UserError
from kbroker.testing import Broker
from tests.pipeline.committed_records import read_committed, values_of

pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("numpy", reason="needs numpy")

from kbroker.pipeline.two_phase.commit import STEPS, BatchCommitter  # noqa: E402
from kbroker.pipeline.two_phase.decision import TaskResult  # noqa: E402
from kbroker.pipeline.two_phase.task import TaskPlan  # noqa: E402
from tests.pipeline.crashing_driver import ROWS, rows_of, run_locally, write_batch  # noqa: E402

TOPIC = "out"
PARTITIONS = 3


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={TOPIC: PARTITIONS}) as running:
        yield running


def crash(broker: Broker, directory: Path, batch_id: int, tasks: int, step: str, count: int = 0) -> None:
    """Runs the batch in a process that kills itself at the step."""
    arguments = [broker.bootstrap, TOPIC, str(directory), str(batch_id), str(tasks), step, str(count)]
    command = [sys.executable, "-m", "tests.pipeline.crashing_driver", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def open_transactions(broker: Broker) -> list[str]:
    async def find() -> list[str]:
        async with open_cluster(parse_addresses(broker.bootstrap)) as cluster:
            return [found.transactional_id for found in await list_transactions(cluster, states=["Ongoing"])]

    return trio.run(find)


def abort(broker: Broker, transactional_id: str) -> None:
    """Aborts a transaction as the broker does after its timeout."""

    async def run() -> None:
        async with open_cluster(parse_addresses(broker.bootstrap)) as cluster:
            assert await abort_transaction(cluster, transactional_id)

    trio.run(run)


@pytest.mark.parametrize(("step", "count"), [*((step, 0) for step in STEPS), ("ended", 1)])
def test_a_driver_killed_at_any_step_loses_and_doubles_nothing(
    broker: Broker, tmp_path: Path, step: str, count: int
) -> None:
    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 2)
    crash(broker, tmp_path, 1, 3, step, count)
    # Another number of tasks, as after a change of the number of executors.
    written = write_batch(broker.bootstrap, TOPIC, str(tmp_path), 1, 2)
    is_decided = step in ("decided", "ended", "finished")
    assert written == (0 if is_decided else ROWS)
    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 2, 4)
    expected = sorted(row for batch_id in range(3) for row in rows_of(batch_id))
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == expected
    assert open_transactions(broker) == []


def test_nothing_is_visible_before_the_decision_and_everything_after_it(broker: Broker, tmp_path: Path) -> None:
    seen = {}

    def look(step: str) -> None:
        seen[step] = len(read_committed(broker.bootstrap, TOPIC, partitions=PARTITIONS))

    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 1, look)
    assert [seen[step] for step in ("begun", "written", "deciding", "decided", "finished")] == [0, 0, 0, 0, ROWS]


def test_batches_of_one_run_reuse_their_transactional_ids(broker: Broker, tmp_path: Path) -> None:
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})
    for batch_id, tasks in enumerate([3, 2, 4, 4]):
        assert committer.write(batch_id, run_locally(batch_id, tasks)) == ROWS
    committer.close()

    async def count() -> int:
        async with open_cluster(parse_addresses(broker.bootstrap)) as cluster:
            return len(await list_transactions(cluster))

    assert trio.run(count) == 4
    expected = sorted(row for batch_id in range(4) for row in rows_of(batch_id))
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == expected


def with_attempts(*attempts: int, batch_id: int, accepted: int) -> Any:
    """Runs one task in several attempts, all to their end; Spark accepts one of them."""

    def run(plan: TaskPlan) -> list[TaskResult]:
        batch = pa.RecordBatch.from_pydict({"value": rows_of(batch_id)})
        done = {attempt: plan.write(0, attempt, 100 + attempt, iter([batch])) for attempt in attempts}
        return [done[accepted]]

    return run


@pytest.mark.parametrize("accepted", [0, 1])
def test_attempts_that_spark_does_not_accept_leave_nothing(broker: Broker, tmp_path: Path, accepted: int) -> None:
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})
    for batch_id in range(3):
        run = with_attempts(0, 1, batch_id=batch_id, accepted=accepted)
        assert committer.write(batch_id, run, may_speculate=True) == ROWS
    committer.close()
    expected = sorted(row for batch_id in range(3) for row in rows_of(batch_id))
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == expected
    assert open_transactions(broker) == []


def test_an_attempt_of_an_earlier_batch_cannot_write_any_more(broker: Broker, tmp_path: Path) -> None:
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})
    committer.write(0, run_locally(0, 1))
    late: list[TaskPlan] = []

    def keep_plan(plan: TaskPlan) -> list[TaskResult]:
        late.append(plan)
        return run_locally(1, 1)(plan)

    committer.write(1, keep_plan)
    with pytest.raises(BrokerRefusal, match="INVALID_PRODUCER_EPOCH"):
        run_locally(1, 1)(late[0])
    committer.write(2, run_locally(2, 1))
    committer.close()
    expected = sorted(row for batch_id in range(3) for row in rows_of(batch_id))
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == expected


def test_brokers_before_kip_890_are_served_with_the_old_protocol(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_producing, "has_version_2", lambda connection: False)
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})
    plans: list[TaskPlan] = []

    def keep_plan(plan: TaskPlan) -> list[TaskResult]:
        plans.append(plan)
        return run_locally(len(plans) - 1, 2)(plan)

    for batch_id in range(3):
        assert committer.write(batch_id, keep_plan) == ROWS
    committer.close()
    # The epoch grows between the batches: a late attempt cannot write into the next transaction.
    assert [plan.leases[1].producer_epoch for plan in plans[1:]] == [1, 2]
    expected = sorted(row for batch_id in range(3) for row in rows_of(batch_id))
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == expected


def test_a_failed_batch_is_written_again_without_a_trace(broker: Broker, tmp_path: Path) -> None:
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})

    def fail(plan: TaskPlan) -> list[TaskResult]:
        run_locally(0, 3)(plan)
        raise RuntimeError("a task failed four times")

    with pytest.raises(RuntimeError):
        committer.write(0, fail)
    assert committer.write(0, run_locally(0, 2)) == ROWS
    committer.close()
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == rows_of(0)
    assert open_transactions(broker) == []


def test_a_batch_whose_transactions_all_timed_out_after_the_decision_is_written_again(
    broker: Broker, tmp_path: Path
) -> None:
    crash(broker, tmp_path, 0, 2, "decided")
    for transactional_id in open_transactions(broker):
        abort(broker, transactional_id)
    assert write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 2) == ROWS
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == rows_of(0)


def test_a_batch_of_which_a_part_timed_out_after_the_decision_is_reported(broker: Broker, tmp_path: Path) -> None:
    crash(broker, tmp_path, 0, 2, "decided")
    abort(broker, sorted(open_transactions(broker))[1])
    for _ in range(2):
        with pytest.raises(UserError, match=r"aborted 1 of 2 transactions \(30 records, of tasks 1\)"):
            write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 2)
    path = tmp_path / "decision.json"
    path.write_text(path.read_text().replace('"decided"', '"finished"'))
    assert write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 2) == 0
    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 1, 2)
    assert values_of(broker.bootstrap, TOPIC, partitions=PARTITIONS) == rows_of(0)[::2] + rows_of(1)


def test_a_batch_that_takes_almost_the_timeout_is_not_committed(broker: Broker, tmp_path: Path) -> None:
    class SlowClock:
        seconds = 0.0

        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            self.seconds += 100
            return self.seconds

    options = {"topic": TOPIC, "transaction.timeout.ms": "60000"}
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, options, clock=SlowClock())
    with pytest.raises(UserError, match=r"took 100000 ms, too long for transaction\.timeout\.ms=60000"):
        committer.write(0, run_locally(0, 2))
    committer.close()
    assert open_transactions(broker) == []
    assert not (tmp_path / "decision.json").exists()


def test_a_timeout_above_the_brokers_limit_is_refused_with_its_name(broker: Broker, tmp_path: Path) -> None:
    options = {"topic": TOPIC, "transaction.timeout.ms": "900001"}
    committer = BatchCommitter(broker.bootstrap, "sink", tmp_path, options)
    with pytest.raises(UserError, match=r"transaction\.max\.timeout\.ms"):
        committer.write(0, run_locally(0, 1))
    committer.close()


def test_a_second_run_is_refused_while_the_first_lives(broker: Broker, tmp_path: Path) -> None:
    first = BatchCommitter(broker.bootstrap, "sink", tmp_path, {"topic": TOPIC})
    first.write(0, run_locally(0, 1))
    with pytest.raises(UserError, match="Another run of sink 'sink'"):
        write_batch(broker.bootstrap, TOPIC, str(tmp_path), 1, 1)
    first.close()


def test_a_checkpoint_older_than_the_sink_is_refused(broker: Broker, tmp_path: Path) -> None:
    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 5, 1)
    with pytest.raises(UserError, match="has committed batch 5, but the query repeats batch 0"):
        write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 1)


def test_the_directory_of_another_sink_and_a_damaged_file_are_refused(broker: Broker, tmp_path: Path) -> None:
    write_batch(broker.bootstrap, TOPIC, str(tmp_path), 0, 1)
    other = BatchCommitter(broker.bootstrap, "other", tmp_path, {"topic": TOPIC})
    with pytest.raises(UserError, match="belongs to sink 'sink', not 'other'"):
        other.write(1, run_locally(1, 1))
    other.close()
    (tmp_path / "decision.json").write_text('{"version": 1')
    with pytest.raises(UserError, match="is not a decision"):
        write_batch(broker.bootstrap, TOPIC, str(tmp_path), 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"linger": "5"}, "no option linger"),
        ({"batch.size": "many"}, "batch.size is 'many'"),
        ({"compression.type": "rar"}, "expected one of: none, gzip, snappy, lz4, zstd"),
        ({"topic": "a b"}, "Topic name is invalid"),
    ],
)
def test_wrong_options_are_refused_in_one_line(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BatchCommitter("127.0.0.1:9", "sink", tmp_path, options)


def test_a_remote_directory_and_a_wrong_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="local or mounted directory"):
        BatchCommitter("127.0.0.1:9", "sink", "s3a://bucket/x", {})
    with pytest.raises(UserError, match="use letters"):
        BatchCommitter("127.0.0.1:9", "a/b", tmp_path, {})


def write_table(broker: Broker, directory: Path, table: dict[str, Any], options: dict[str, str]) -> None:
    committer = BatchCommitter(broker.bootstrap, "sink", directory, options)
    batch = pa.RecordBatch.from_pydict(table)
    try:
        committer.write(0, lambda plan: [plan.write(0, 0, 0, iter([batch]))])
    finally:
        committer.close()


def test_topics_partitions_headers_and_timestamps_are_kept(broker: Broker, tmp_path: Path) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = {
        "topic": [TOPIC, "other", TOPIC],
        "partition": pa.array([2, 0, None], pa.int32()),
        "key": [b"a", b"b", b"c"],
        "value": [b"1", None, b"3"],
        "timestamp": pa.array(
            [1_700_000_000_123_456, 1_700_000_000_124_000, 1_700_000_000_125_000], pa.timestamp("us", "UTC")
        ),
        "headers": pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None, []], headers),
    }
    write_table(broker, tmp_path, table, {"compression.type": "zstd"})
    first, second = sorted(read_committed(broker.bootstrap, TOPIC, partitions=PARTITIONS), key=lambda each: each.key())
    assert (first.partition(), first.key(), first.value(), first.timestamp()[1]) == (2, b"a", b"1", 1_700_000_000_123)
    assert first.headers() == [("h", b"x"), ("n", None)]
    assert (second.key(), second.timestamp()[1], second.headers()) == (b"c", 1_700_000_000_125, None)
    (third,) = read_committed(broker.bootstrap, "other", partitions=1)
    assert (third.key(), third.value()) == (b"b", None)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"key": [b"a"]}, {"topic": TOPIC}, "no column value"),
        ({"value": [b"a"]}, {}, "A record has no topic"),
        ({"value": [b"a"], "partition": [9]}, {"topic": TOPIC}, "has 3 partitions; partition 9 does not exist"),
    ],
)
def test_wrong_records_are_refused_in_one_line(
    broker: Broker, tmp_path: Path, table: dict[str, Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write_table(broker, tmp_path, table, options)


@pytest.mark.slow
def test_a_broker_killed_between_the_phases_and_while_it_ends_transactions_loses_nothing(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    with ExitStack() as stack:
        bootstrap, process = stack.enter_context(run_kbroker(tmp_path, *data))
        processes = [process]

        def kill(step: str) -> None:
            if step in ("begun", "written", "decided"):
                processes[-1].kill()
                processes[-1].wait()
                port = int(bootstrap.rpartition(":")[2])
                processes.append(stack.enter_context(run_kbroker(tmp_path, *data, port=port))[1])

        for batch_id in range(2):
            write_batch(bootstrap, TOPIC, str(tmp_path / "sink"), batch_id, 3, kill)
        assert values_of(bootstrap, TOPIC, partitions=1) == rows_of(0) + rows_of(1)
    assert len(processes) == 7
