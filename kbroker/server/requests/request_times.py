"""Counts requests and measures their times, by API. Hot path: one request costs two additions.

All requests of a run arrive with one poll and are answered at its end, so the run measures them together, with the two
times that its watcher reads anyway. Only a request that waits beyond its run is measured by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.histogram import Histogram

if TYPE_CHECKING:
    from kbroker.server.requests.run import Run

__all__ = ["RequestTally", "RequestTimes"]


class RequestTimes:
    """Times and errors of the requests of one API.

    `local` holds the durations of the runs that handled requests, `waiting` the same for requests that their run did
    not answer. `remote` and `throttle` hold only requests that waited or were throttled; for all others these times are
    0.
    """

    __slots__ = ("errors", "local", "remote", "throttle", "waiting")

    def __init__(self) -> None:
        self.local = Histogram()
        self.waiting = Histogram()
        self.remote = Histogram()
        self.throttle = Histogram()
        self.errors: dict[int, int] = {}
        """Error code -> number of occurrences in responses, without NONE."""

    def add_errors(self, errors: Mapping[int, int]) -> None:
        for code, count in errors.items():
            self.errors[code] = self.errors.get(code, 0) + count

    def on_delayed(self, milliseconds: float) -> None:
        """Counts a request that was answered after the run in which it arrived."""
        self.remote.observe(milliseconds)

    def total(self) -> Histogram:
        """Returns the times of all answered requests. Computed here: most requests are answered by their run."""
        total = Histogram()
        total.include(self.local)
        total.exclude(self.waiting)
        total.include(self.remote)
        return total


class RequestTally:
    """Number of requests of one API in one version. `received` includes the requests of ended runs only."""

    __slots__ = ("answered_in_run", "in_run", "received", "run", "times")

    def __init__(self, run: Run, times: RequestTimes) -> None:
        self.run = run
        self.times = times
        self.received: int = 0
        self.in_run: int = 0
        self.answered_in_run: int = 0

    def on_received(self) -> None:
        if self.in_run == 0:
            self.run.tallies.append(self)
        self.in_run += 1

    def on_answered(self, began: float) -> None:
        """Counts a response. `began` is the begin of the run in which the request arrived."""
        run = self.run
        if run.is_open and run.began == began:
            self.answered_in_run += 1
        else:
            self.times.on_delayed(1000.0 * (run.monotonic() - began))

    def on_run_ended(self, bucket: int, milliseconds: float) -> None:
        times, handled = self.times, self.in_run
        self.received += handled
        times.local.add(bucket, handled, milliseconds)
        if self.answered_in_run != handled:
            times.waiting.add(bucket, handled - self.answered_in_run, milliseconds)
        self.in_run = 0
        self.answered_in_run = 0
