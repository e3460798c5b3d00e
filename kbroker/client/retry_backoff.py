"""Exponential backoff between retries, with a deadline."""

from __future__ import annotations

from typing import Final

import trio

__all__ = ["RetryBackoff"]

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0


class RetryBackoff:
    """Call `await backoff.pause(failure)` after each failed attempt.

    It raises the failure once the deadline has passed.
    """

    def __init__(self, timeout_s: float) -> None:
        self._deadline = trio.current_time() + timeout_s
        self._pause_s = FIRST_PAUSE_SECONDS

    async def pause(self, failure: Exception) -> None:
        if trio.current_time() + self._pause_s > self._deadline:
            raise failure
        await trio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_SECONDS)
