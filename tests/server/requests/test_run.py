"""Order of the steps of a run, and flushes at its end: once, in order, also if one of them fails."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.clock import SystemClock
from kbroker.server.requests.run import Run


def test_flushes_are_called_once_and_in_order() -> None:
    run, flushed = Run(SystemClock()), list[str]()
    run.flush_at_end(lambda: flushed.append("first"))
    run.flush_at_end(lambda: flushed.append("second"))
    run.end()
    run.end()
    assert flushed == ["first", "second"]


def test_a_flush_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    run, flushed = Run(SystemClock()), list[str]()
    run.flush_at_end(fail)
    run.flush_at_end(lambda: flushed.append("second"))
    run.end()
    assert flushed == ["second"]
    assert "Unexpected error flushing" in caplog.text


def test_a_flush_added_by_a_flush_belongs_to_the_next_run() -> None:
    run, flushed = Run(SystemClock()), list[str]()
    run.flush_at_end(lambda: run.flush_at_end(lambda: flushed.append("later")))
    run.end()
    assert flushed == []
    run.end()
    assert flushed == ["later"]


class Order:
    """Partition, staged request and connection that write down in which order the run calls them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def commit(self) -> None:
        self.calls.append("written")

    def on_written(self) -> None:
        self.calls.append("answered")

    def end_run(self) -> None:
        self.calls.append("sent")


def test_a_run_writes_before_it_answers_and_sends_last() -> None:
    run, order = Run(SystemClock()), Order()
    run.begin(0.0)
    assert run.add_connection(cast(Any, order))
    run.produces.append(cast(Any, order))
    run.add_partition(cast(Any, order))
    run.flush_at_end(lambda: order.calls.append("flushed"))
    run.end()
    assert order.calls == ["written", "answered", "flushed", "sent"]
    assert not run.is_open


def test_batches_without_a_request_are_written_before_their_buffer_is_released() -> None:
    """A handler that fails after it has staged a batch leaves no request in the run."""
    run, order = Run(SystemClock()), Order()
    run.begin(0.0)
    run.add_connection(cast(Any, order))
    run.add_partition(cast(Any, order))
    run.end()
    assert order.calls == ["written", "sent"]


def test_a_connection_that_is_added_while_the_run_ends_is_sent_too() -> None:
    class Waking(Order):
        def end_run(self) -> None:
            super().end_run()
            assert run.add_connection(cast(Any, woken))

    run, woken = Run(SystemClock()), Order()
    run.begin(0.0)
    run.add_connection(cast(Any, Waking()))
    run.end()
    assert woken.calls == ["sent"]
    assert not run.add_connection(cast(Any, woken)), "no run is open"
