"""Pace of compaction, with a clock that the test moves."""

from __future__ import annotations

import pytest

from kbroker.replication.cleaning.cleaner_pace import CleanerPace, IoThrottle
from kbroker.thread_pace import ThreadStopped


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.asked = 0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        self.asked += 1
        self.seconds += 0.01
        return self.seconds


def test_it_keeps_to_the_rate_and_follows_it() -> None:
    clock = Clock()
    rate = [1000.0]
    pace = CleanerPace(clock, IoThrottle(clock, lambda: rate[0]))
    pace.took(100)
    assert 0.1 <= clock.seconds - 100.0 < 0.2
    before = clock.asked
    rate[0] = 1e308
    pace.took(1 << 40)
    assert clock.asked - before <= 3


def test_a_stop_ends_it_wherever_it_is() -> None:
    clock = Clock()
    pace = CleanerPace(clock, IoThrottle(clock, lambda: 1.0))
    pace.tick()
    pace.stop()
    with pytest.raises(ThreadStopped):
        pace.tick()
    with pytest.raises(ThreadStopped):
        pace.took(1000)
