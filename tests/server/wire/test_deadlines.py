from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from kbroker.server.wire.deadlines import Deadlines


@pytest.fixture
async def deadlines(nursery: trio.Nursery) -> AsyncIterator[Deadlines]:
    deadlines = Deadlines()
    nursery.start_soon(deadlines.run)
    await trio.testing.wait_all_tasks_blocked()
    yield deadlines
    nursery.cancel_scope.cancel()


async def test_callbacks_are_called_in_the_order_of_their_times(
    deadlines: Deadlines, autojump_clock: trio.testing.MockClock
) -> None:
    called: list[int] = []
    for seconds in (3, 1, 2, 1):
        deadlines.add(seconds, lambda seconds=seconds: called.append(seconds))  # type: ignore[misc]
    await trio.sleep(1.5)
    assert called == [1, 1]
    await trio.sleep(5)
    assert called == [1, 1, 2, 3]
    assert len(deadlines) == 0


async def test_a_cancelled_callback_is_not_called(deadlines: Deadlines, autojump_clock: trio.testing.MockClock) -> None:
    called: list[int] = []
    kept = [deadlines.add(1, lambda number=number: called.append(number)) for number in range(300)]  # type: ignore[misc]
    for deadline in kept[::3]:
        deadline.cancel()
        deadline.cancel()
    await trio.sleep(2)
    assert called == [number for number in range(300) if number % 3]
    for deadline in kept:
        deadline.cancel()  # those that were called are no longer counted
    assert len(deadlines) == 0
    deadlines.add(1, lambda: called.append(-1))
    await trio.sleep(2)
    assert called[-1] == -1


async def test_the_heap_drops_cancelled_entries_long_before_they_are_due(deadlines: Deadlines) -> None:
    waiting = [deadlines.add(3600, lambda: None) for _ in range(10)]
    for _ in range(20):
        for deadline in [deadlines.add(1800, lambda: None) for _ in range(1000)]:
            deadline.cancel()
        assert len(deadlines) <= 2 * len(waiting) + 200
    assert all(deadline.callback is not None for deadline in waiting)


async def test_a_callback_may_cancel_all_others_that_are_due(
    deadlines: Deadlines, autojump_clock: trio.testing.MockClock
) -> None:
    called: list[int] = []
    others = [deadlines.add(1, lambda: called.append(1)) for _ in range(1000)]

    def cancel_all() -> None:
        for deadline in others:
            deadline.cancel()

    deadlines.add(0.5, cancel_all)
    deadlines.add(2, lambda: called.append(2))
    await trio.sleep(3)
    assert called == [2]


async def test_an_error_of_a_callback_does_not_stop_the_others(
    deadlines: Deadlines, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []
    deadlines.add(1, lambda: 1 / 0)  # type: ignore[arg-type]
    deadlines.add(1, lambda: called.append(1))
    await trio.sleep(2)
    assert called == [1]
    assert "ZeroDivisionError" in caplog.text
