"""Clock of a broker in a test: runs like the system's clocks, and can be advanced."""

from __future__ import annotations

import trio
import trio.testing

from kbroker.clock import SystemClock
from kbroker.errors import UserError

__all__ = ["BrokerClock"]

_SETTLE_SECONDS = 10.0


class BrokerClock(trio.abc.Clock):
    """Serves as kbroker's Clock and as the clock of its trio loop: both must agree on the time."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return self._system.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._system.monotonic() + self._ahead_ms / 1000

    async def advance(self, milliseconds: int) -> None:
        """Advances the time. Returns when the tasks that are due have run and wait again. Call it in the loop."""
        if milliseconds < 0:
            raise UserError("The clock of a broker cannot go back")
        self._ahead_ms += milliseconds
        with trio.move_on_after(_SETTLE_SECONDS):
            await trio.testing.wait_all_tasks_blocked()

    # Called by trio

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.monotonic()
