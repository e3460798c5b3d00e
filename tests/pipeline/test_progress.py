"""Progress from Spark's reports, status from the files of a checkpoint, and how both are shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.pipeline_metrics import PipelineMetrics
from kbroker.cli.pipeline_run import progress_line
from kbroker.errors import UserError
from kbroker.pipeline.checkpoint_status import lag_by_topic, read_status
from kbroker.pipeline.problems import INTERRUPTED, batch_problem, problem_of
from kbroker.pipeline.progress import Progress, progress_of

BAD_VALUE = "The value at offset 3 of partition 0 of topic orders is not JSON of the schema. Set values.dead_letters"

REPORT: dict[str, Any] = {
    "batchId": 7,
    "numInputRows": 1200,
    "processedRowsPerSecond": 400.0,
    "durationMs": {"addBatch": 2500, "triggerExecution": 3000},
    "sources": [
        {
            "endOffset": {"orders": {"0": 100, "1": 50}, "refunds": {"0": 3}},
            "latestOffset": {"orders": {"0": 110, "1": 55}, "refunds": {"0": 3}},
        }
    ],
    "sink": {"numOutputRows": -1},
    "observedMetrics": {"kbroker_rows_out": {"rows": 1100}},
}


def test_rows_rates_and_lag_come_from_the_report() -> None:
    expected = Progress(7, 1200, 1100, 400.0, 3000, {"orders": 15, "refunds": 0})
    assert progress_of(REPORT) == expected
    assert progress_line("totals", expected) == (
        "totals: batch 7, 1,200 rows in, 1,100 out, 400 rows/s, 3,000 ms, lag orders 15, refunds 0"
    )


def test_rows_out_are_left_out_if_the_pipeline_does_not_count_them() -> None:
    report = {name: value for name, value in REPORT.items() if name != "observedMetrics"}
    assert progress_line("audit", progress_of(report)).startswith("audit: batch 7, 1,200 rows in, 400 rows/s, ")


def test_a_report_of_spark_connect_has_its_numbers_elsewhere() -> None:
    numbers = {"numInputRows": 600, "processedRowsPerSecond": 200.0}
    (source,) = REPORT["sources"]
    schema = {"type": "struct", "fields": [{"name": "rows", "type": "long", "nullable": False, "metadata": {}}]}
    report = {
        **REPORT,
        "numInputRows": None,
        "processedRowsPerSecond": None,
        "sources": [{**source, **numbers}, numbers],
        "observedMetrics": {"kbroker_rows_out": ([1100], schema)},
    }
    assert progress_of(report) == progress_of(REPORT)


def test_a_report_without_a_batch_is_told_apart() -> None:
    idle = {**REPORT, "durationMs": {"latestOffset": 1}, "processedRowsPerSecond": float("nan"), "observedMetrics": {}}
    found = progress_of(idle)
    assert (found.is_batch, found.rows_per_s, found.rows_out) == (False, 0.0, None)


def test_a_source_that_is_no_topic_has_no_lag() -> None:
    files = {"endOffset": {"logOffset": 3}, "latestOffset": None}
    assert progress_of({**REPORT, "sources": [files]}).lag == {}


def test_metrics_add_up_the_batches() -> None:
    metrics = PipelineMetrics("totals")
    for _ in range(2):
        metrics.add("main", progress_of(REPORT))
    lines = metrics.read().decode().splitlines()
    assert 'kbroker_pipeline_rows_in_total{pipeline="totals",query="main"} 2400' in lines
    assert 'kbroker_pipeline_rows_out_total{pipeline="totals",query="main"} 2200' in lines
    assert 'kbroker_pipeline_lag{pipeline="totals",query="main",topic="orders"} 15' in lines
    assert 'kbroker_pipeline_up{pipeline="totals"} 1' in lines


def write_batch(
    query: Path, number: int, *, time_ms: int, offset: int, duration_ms: int = 1000, is_ended: bool = True
) -> None:
    for name in ("offsets", "commits"):
        (query / name).mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"batchTimestampMs": time_ms}), json.dumps({"orders": {"0": offset, "1": 5}})]
    (query / "offsets" / str(number)).write_text("\n".join(lines))
    (query / "offsets" / f".{number}.crc").touch()
    if is_ended:
        commit = query / "commits" / str(number)
        commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
        os.utime(commit, ns=(0, (time_ms + duration_ms) * 1_000_000))


def write_first_offsets(query: Path, source: int, *, offset: int) -> None:
    directory = query / "sources" / str(source)
    directory.mkdir(parents=True)
    (directory / "0").write_bytes(b"\0v1\n" + json.dumps({"orders": {"0": offset, "1": 5}}).encode())


def test_the_status_is_that_of_the_last_batch_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "kbroker-pipeline.json").write_text("{}")
    for number in range(4):
        is_ended = number < 3
        write_batch(tmp_path / "main", number, time_ms=1000 * number, offset=100 * number, is_ended=is_ended)
    (status,) = read_status(str(tmp_path))
    assert (status.query, status.batch, status.batch_time_ms, status.is_batch_open) == ("main", 2, 2000, True)
    assert status.offsets == {"orders": {0: 200, 1: 5}}
    assert status.rows_per_s == 100.0
    assert lag_by_topic(status.offsets, {"orders": {0: 210, 1: 5, 2: 7}}) == {"orders": 17}


def test_the_rate_is_that_of_the_time_in_which_batches_ran(tmp_path: Path) -> None:
    """Cron runs `--once` each hour: the hours between the batches do not count."""
    (tmp_path / "kbroker-pipeline.json").write_text("{}")
    hour_ms = 3_600_000
    for number in range(15):
        write_batch(
            tmp_path / "main", number, time_ms=hour_ms * number, offset=1000 * number * number, duration_ms=2000
        )
    (status,) = read_status(str(tmp_path))
    assert status.rows_per_s == (14**2 - 4**2) * 1000 / (10 * 2)  # the last ten batches


def test_the_first_batch_has_a_rate(tmp_path: Path) -> None:
    (tmp_path / "kbroker-pipeline.json").write_text("{}")
    write_batch(tmp_path / "main", 0, time_ms=7000, offset=500, duration_ms=4000)
    assert read_status(str(tmp_path))[0].rows_per_s is None  # where it began is unknown
    write_first_offsets(tmp_path / "main", 0, offset=300)
    assert read_status(str(tmp_path))[0].rows_per_s == 50.0


def test_each_hop_of_an_audit_has_its_own_status(tmp_path: Path) -> None:
    """Two clusters have a topic orders; a table has no offsets of topics."""
    (tmp_path / "kbroker-pipeline.json").write_text("{}")
    for number in range(2):
        write_batch(tmp_path / "main", number, time_ms=1000 * number, offset=100 * number)
        with open(tmp_path / "main" / "offsets" / str(number), "a") as file:
            file.write(f'\n{{"logOffset":{number}}}\n{{"orders":{{"0":{10 * number}}}}}')
    here, table, there = read_status(str(tmp_path), hops=["broker", "archive", "mirror"])
    assert (here.query, here.offsets, here.rows_per_s) == ("broker", {"orders": {0: 100, 1: 5}}, 100.0)
    assert (table.query, table.offsets, table.rows_per_s) == ("archive", {}, None)
    assert (there.query, there.offsets, there.rows_per_s) == ("mirror", {"orders": {0: 10}}, 10.0)


def test_a_pipeline_that_never_ran_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the checkpoint of a pipeline, or the pipeline has never run"):
        read_status(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("java.io.IOException: No space left on device\n\tat x", "The disk is full. Free some space. Run the pipeline"),
        (
            f"[X]\n\tat x\nCaused by: a.SparkRuntimeException: [USER_RAISED_EXCEPTION] {BAD_VALUE} SQLSTATE: P0001",
            BAD_VALUE,
        ),
        ("x: Some data may have been lost because they are not", "Records were deleted before they were read"),
        (
            "java.lang.X: outer\nCaused by: a.b.InnerException: the cause",
            "Spark ended the pipeline: InnerException: the",
        ),
        ("x\nTraceback:\n  File\nkbroker.client.failures.NoSuchTopic: topic a: gone\n\tat x", "topic a: gone"),
        (
            "Traceback:\nModuleNotFoundError: No module named 'numpy'\nCaused by: py4j.Py4JException: a proxy",
            "Spark ended the pipeline: ModuleNotFoundError: No module named 'numpy'",
        ),
        ("plain", "Spark ended the pipeline: plain"),
    ],
)
def test_a_failure_of_spark_becomes_one_line(text: str, line: str) -> None:
    shown = str(problem_of(RuntimeError(text)))
    assert shown.startswith(line)
    assert "\n" not in shown
    assert "SQLSTATE" not in shown


def test_a_failed_batch_has_a_short_text_that_tells_a_stop_from_a_failure() -> None:
    """Spark's regular expression for stops overflows the stack of the JVM on a long text."""
    stack = "\n\tat java.base/java.lang.Thread.run(Thread.java:840)" * 500
    call = "py4j.protocol.Py4JJavaError: An error occurred while calling o9.collectToPython.\n: "
    for cause in ("java.lang.InterruptedException", "Job 7 cancelled part of cancelled job group 1"):
        assert str(batch_problem(RuntimeError(f"{call}{cause}{stack}"))) == INTERRUPTED
    failed = batch_problem(RuntimeError(f"{call}java.io.IOException: No space left on device{stack}"))
    assert str(failed).startswith("The disk is full. ")


def test_the_reason_of_a_failed_task_is_in_the_stack_of_its_cause() -> None:
    class Captured(Exception):
        def __init__(self, text: str, stack: str = "", cause: Captured | None = None) -> None:
            super().__init__(text)
            self._stackTrace = stack
            self._cause = cause

    stack = (
        "a.SparkException: [TASK_WRITE_FAILED]\n\tat x\nCaused by: java.io.IOException: No space left on device\n\tat x"
    )
    failure = Captured("[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake.", cause=Captured("x", stack))
    assert str(problem_of(failure)).startswith("The disk is full. ")


def test_a_failure_whose_text_is_in_a_jvm_that_is_gone_has_a_name() -> None:
    class Lost(Exception):
        def __str__(self) -> str:
            raise ConnectionError

    assert str(problem_of(Lost())) == "Spark ended the pipeline: Lost"
