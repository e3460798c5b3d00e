"""What is flushed at the end of a run: once, in order, whatever becomes of the others."""

from __future__ import annotations

import pytest

from kbroker.clock import SystemClock
from kbroker.server.append_run import AppendRun


def test_flushes_come_once_and_in_order() -> None:
    run, flushed = AppendRun(SystemClock()), list[str]()
    run.flush_at_end(lambda: flushed.append("first"))
    run.flush_at_end(lambda: flushed.append("second"))
    run.end()
    run.end()
    assert flushed == ["first", "second"]


def test_a_flush_that_fails_keeps_no_other_from_being_written(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    run, flushed = AppendRun(SystemClock()), list[str]()
    run.flush_at_end(fail)
    run.flush_at_end(lambda: flushed.append("second"))
    run.end()
    assert flushed == ["second"]
    assert "could not be written" in caplog.text


def test_what_a_flush_enters_belongs_to_the_next_run() -> None:
    run, flushed = AppendRun(SystemClock()), list[str]()
    run.flush_at_end(lambda: run.flush_at_end(lambda: flushed.append("later")))
    run.end()
    assert flushed == []
    run.end()
    assert flushed == ["later"]
