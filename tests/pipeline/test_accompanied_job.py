"""Work beside a streaming query, with a query that the test steps. Needs no Spark."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.accompanied_job import AccompaniedJob
from kbroker.pipeline.jobs import StreamJob


class SteppedQuery:
    """Each `awaitTermination` takes one step of the test: whether the query has ended, or its failure."""

    def __init__(self, steps: list[bool | Exception]) -> None:
        self._steps: queue.SimpleQueue[bool | Exception] = queue.SimpleQueue()
        for step in steps:
            self._steps.put(step)
        self._failure: Exception | None = None
        self.isActive = True

    def awaitTermination(self, timeout: float) -> bool:
        step = self._steps.get()
        self.isActive = step is False
        if isinstance(step, Exception):
            self._failure = step
            raise step
        return step

    def exception(self) -> Exception | None:
        return self._failure


def run_job(steps: list[bool | Exception], act: Callable[[SteppedQuery], object]) -> AccompaniedJob:
    query = SteppedQuery(steps)
    stream: Any = query
    return AccompaniedJob(StreamJob(stream, "job"), lambda: act(query), interval_s=10)


def test_the_work_runs_at_each_interval_and_after_the_query_has_ended() -> None:
    acted: list[bool] = []
    job = run_job([False, False, True], lambda query: acted.append(query.isActive))
    job.wait()
    assert acted == [True, True, False]
    assert not job.is_active


def test_a_failure_of_the_work_does_not_end_the_query(caplog: pytest.LogCaptureFixture) -> None:
    def fail(query: SteppedQuery) -> None:
        raise UserError("no broker answers")

    run_job([False, True], fail).wait()
    assert [record.getMessage() for record in caplog.records] == ["job: no broker answers"] * 2


def test_a_failure_of_the_query_reaches_the_caller() -> None:
    acted: list[int] = []
    job = run_job([False, ValueError("lost")], lambda query: acted.append(1))
    with pytest.raises(ValueError, match="lost"):
        job.wait()
    assert len(acted) == 2
