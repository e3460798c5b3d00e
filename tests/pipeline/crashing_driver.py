"""A driver of the exactly-once sink without Spark: runs one batch, and kills itself with SIGKILL at a step.

    python -m tests.pipeline.crashing_driver BOOTSTRAP TOPIC DIRECTORY BATCH TASKS STEP COUNT

STEP "" runs to the end. COUNT: how often the step is passed before the kill.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kbroker.pipeline.two_phase.commit import BatchCommitter
from kbroker.pipeline.two_phase.decision import TaskResult
from kbroker.pipeline.two_phase.task import TaskPlan

__all__ = ["ROWS", "rows_of", "tasks_of", "write_batch"]

ROWS = 60


def rows_of(batch_id: int) -> list[str]:
    return [f"{batch_id:03d}-{number:03d}" for number in range(ROWS)]


def tasks_of(batch_id: int, task_count: int) -> list[Any]:
    """Returns the Arrow batch of each task. The rows are the same for any number of tasks."""
    rows = rows_of(batch_id)
    shares = [rows[number::task_count] for number in range(task_count)]
    return [pa.RecordBatch.from_pydict({"key": share, "value": share}) for share in shares]


def run_locally(batch_id: int, task_count: int) -> Callable[[TaskPlan], list[TaskResult]]:
    def run(plan: TaskPlan) -> list[TaskResult]:
        return [
            plan.write(index, 0, index, iter([batch])) for index, batch in enumerate(tasks_of(batch_id, task_count))
        ]

    return run


def write_batch(
    bootstrap: str,
    topic: str,
    directory: str,
    batch_id: int,
    task_count: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> int:
    committer = BatchCommitter(bootstrap, "sink", directory, {"topic": topic}, on_step=on_step)
    try:
        return committer.write(batch_id, run_locally(batch_id, task_count))
    finally:
        committer.close()


def main(bootstrap: str, topic: str, directory: str, batch: str, tasks: str, step: str, count: str) -> None:
    left = int(count)

    def kill_at(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    write_batch(bootstrap, topic, directory, int(batch), int(tasks), kill_at)


if __name__ == "__main__":
    main(*sys.argv[1:])
