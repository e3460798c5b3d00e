"""Times of requests: one measurement for all requests of a run, and one for each request that waits longer."""

from __future__ import annotations

import pytest

from kbroker.histogram import bucket_of
from kbroker.server.requests.request_times import RequestTally, RequestTimes
from kbroker.server.requests.run import Run


class HandClock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def run(clock: HandClock) -> Run:
    return Run(clock)


def receive(run: Run, clock: HandClock, *tallies: RequestTally) -> float:
    run.begin(clock.monotonic())
    for tally in tallies:
        tally.on_received()
    return run.began


def test_all_requests_of_a_run_take_as_long_as_the_run(run: Run, clock: HandClock) -> None:
    produce, fetch = RequestTally(run, RequestTimes()), RequestTally(run, RequestTimes())
    began = receive(run, clock, produce, produce, fetch)
    clock.seconds += 0.002
    for tally in (produce, produce, fetch):
        tally.on_answered(began)
    assert run.end() == clock.seconds
    assert (produce.received, fetch.received) == (2, 1)
    for tally, count in ((produce, 2), (fetch, 1)):
        for histogram in (tally.times.total(), tally.times.local):
            assert histogram.counts[bucket_of(2.0)] == sum(histogram.counts) == count
            assert histogram.sum_ms == pytest.approx(2 * count)
        assert sum(tally.times.remote.counts) == 0
    assert run.busy_ms == pytest.approx(2)


def test_a_request_that_waits_is_measured_from_its_arrival(run: Run, clock: HandClock) -> None:
    tally = RequestTally(run, RequestTimes())
    began = receive(run, clock, tally, tally)
    clock.seconds += 0.001
    run.end()
    assert sum(tally.times.total().counts) == 0
    assert sum(tally.times.local.counts) == 2
    clock.seconds += 0.5
    tally.on_answered(began)  # between two runs
    receive(run, clock)
    tally.on_answered(began)  # by a later run
    run.end()
    assert tally.times.remote.sum_ms == pytest.approx(2 * 501)
    assert tally.times.total().sum_ms == pytest.approx(2 * 501)
    assert sum(tally.times.total().counts) == 2


def test_an_empty_run_counts_no_request_again(run: Run, clock: HandClock) -> None:
    tally = RequestTally(run, RequestTimes())
    tally.on_answered(receive(run, clock, tally))
    run.end()
    receive(run, clock)
    run.end()
    assert tally.received == sum(tally.times.total().counts) == 1
