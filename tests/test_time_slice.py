from __future__ import annotations

import trio

from kbroker.time_slice import TimeSlice


class SteppedClock:
    def __init__(self) -> None:
        self.seconds = 5.0

    def now_ms(self) -> int:
        raise AssertionError("a slice is measured by the monotonic clock")

    def monotonic(self) -> float:
        return self.seconds


async def test_other_tasks_run_only_when_a_slice_is_over() -> None:
    clock = SteppedClock()
    time_slice = TimeSlice(clock)
    turns: list[float] = []

    async def other_task() -> None:
        while True:
            turns.append(clock.seconds)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_task)
        assert not await time_slice.checkpoint_if_over()
        clock.seconds += 0.001
        assert not await time_slice.checkpoint_if_over()
        assert not turns
        for _ in range(2):  # trio may resume this task first, but not twice
            clock.seconds += 0.002
            assert await time_slice.checkpoint_if_over()
        assert turns
        assert not await time_slice.checkpoint_if_over()
        nursery.cancel_scope.cancel()
