"""Decides how long a watcher polls without sleeping (spins) before it waits for the next request.

A client with one request in flight sends the next one soon after its response. Polling until then saves both sides a
wake-up: 1.6 times the requests, at the same CPU for each. But a core that spins is taken from clients on the same
machine. So the watcher spins only

- where it pays: most of the last requests have followed soon enough, and
- while no other process needs the core: the last trial had few involuntary context switches.

Pure: the caller passes the time and the counter of context switches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Spinning"]

# Time to spin. It follows the time that requests took lately; if they take longer, spinning does not pay.
_SHORTEST_SECONDS: Final = 0.00002
_LONGEST_SECONDS: Final = 0.0003
_MARGIN: Final = 1.5  # the next request may take a little longer than the last one
# Share of the last requests that came soon enough, as a moving average over about so many. With a share of one half
# (a client that sends two requests and then works for a while) the misses cost more than the hits save.
_SHARE_STEP: Final = 1 / 8
_MIN_SHARE: Final = 0.75
# The counter of context switches is read at the end of each trial. A thread that shares its core loses it about every
# 3 ms of running; a thread with a core of its own loses it seldom, to threads of the kernel.
_TRIAL_SECONDS: Final = 0.05
_MAX_SWITCHES: Final = 3
# After a trial with more switches the watcher does not spin: longer each time, shorter again after a better trial.
_SHORTEST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 3.2


class Spinning:
    __slots__ = ("_count_switches", "_pause", "_paused_until", "_seconds", "_share", "_switches", "_trial_end")

    def __init__(self, count_switches: Callable[[], int]) -> None:
        """`count_switches` returns how often the kernel has taken the core from this thread."""
        self._count_switches = count_switches
        self._seconds = _SHORTEST_SECONDS
        self._share = 0.0
        self._switches = 0  # when the trial began
        self._trial_end = 0.0  # 0: there is no trial
        self._paused_until = 0.0
        self._pause = _SHORTEST_PAUSE

    def seconds(self, now: float) -> float:
        """Returns how long to spin now; 0 if the watcher should sleep at once."""
        if self._share < _MIN_SHARE:
            self._trial_end = 0.0
            return 0.0
        if now < self._paused_until:
            return 0.0
        if now >= self._trial_end:
            switches = self._count_switches()
            # A trial that ended long ago says nothing: there were no requests since.
            if self._trial_end > 0.0 and now < self._trial_end + _TRIAL_SECONDS:
                if switches - self._switches > _MAX_SWITCHES:
                    self._paused_until = now + self._pause
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    self._trial_end = 0.0
                    return 0.0
                self._pause = max(self._pause / 2, _SHORTEST_PAUSE)
            self._switches = switches
            self._trial_end = now + _TRIAL_SECONDS
        return self._seconds

    def on_hit(self) -> None:
        """Records that a request came while the watcher was spinning."""
        self._share += (1.0 - self._share) * _SHARE_STEP

    def on_miss(self, waited_seconds: float) -> None:
        """Records how long the watcher has waited, spinning included, until a request came or it gave up."""
        spin_seconds = _MARGIN * waited_seconds
        if spin_seconds <= _LONGEST_SECONDS:
            self._seconds = max(spin_seconds, _SHORTEST_SECONDS)
            self.on_hit()
        else:
            self._share -= self._share * _SHARE_STEP
