from __future__ import annotations

from kbroker.protocol.framing import GROWING, SMALL, WHOLE
from kbroker.server.wire.memory_budget import MemoryBudget

LIMIT = 1600  # of which 100 are the reserve for small frames


class Waiter:
    def __init__(self) -> None:
        self.granted = 0

    def on_memory_granted(self, size: int, kind: int) -> None:
        self.granted += size


def test_bytes_that_do_not_fit_are_refused_until_others_are_released() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(900, WHOLE)
    assert not budget.try_reserve(700, WHOLE)
    budget.release(200, WHOLE)
    assert budget.try_reserve(700, WHOLE)
    assert budget.used == 1400


def test_waiters_are_served_in_order() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(1400, WHOLE)
    large, less = Waiter(), Waiter()
    budget.enqueue(large, 1200, WHOLE, now=0)
    budget.enqueue(less, 50, WHOLE, now=1)
    assert not budget.try_reserve(1, WHOLE)
    assert not budget.try_reserve(1, GROWING)
    budget.release(100, WHOLE)
    assert (large.granted, less.granted) == (0, 0)
    budget.release(1000, WHOLE)
    assert (large.granted, less.granted, budget.used) == (1200, 0, 1500)
    budget.release(300, WHOLE)
    assert (less.granted, budget.used) == (50, 1250)


def test_a_waiter_that_leaves_lets_the_next_one_in() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(1400, WHOLE)
    large, less = Waiter(), Waiter()
    budget.enqueue(large, 1000, WHOLE, now=0)
    budget.enqueue(less, 50, WHOLE, now=3)
    assert budget.longest_wait(now=10) == 10
    budget.leave(large)
    assert less.granted == 50
    assert budget.longest_wait(now=10) is None
    budget.leave(large)


def test_more_than_the_whole_budget_passes_alone() -> None:
    budget = MemoryBudget(LIMIT)
    waiter = Waiter()
    assert budget.try_reserve(10, WHOLE)
    assert not budget.try_reserve(10_000, WHOLE)
    budget.enqueue(waiter, 10_000, WHOLE, now=0)
    assert waiter.granted == 0
    budget.release(10, WHOLE)
    assert waiter.granted == 10_000
    assert budget.is_exhausted()


def test_responses_are_charged_even_when_there_is_no_room() -> None:
    budget = MemoryBudget(LIMIT)
    budget.charge(2000)
    assert budget.is_exhausted()
    waiter = Waiter()
    budget.enqueue(waiter, 10, WHOLE, now=0)
    budget.charge(-1000)
    assert (waiter.granted, budget.used) == (10, 1010)


def test_growing_frames_leave_half_of_the_budget_to_whole_frames() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(800, GROWING)
    assert not budget.try_reserve(1, GROWING)
    assert budget.try_reserve(700, WHOLE)
    budget.change_kind(100, GROWING, WHOLE)
    budget.release(700, WHOLE)
    assert budget.try_reserve(100, GROWING)


def test_if_only_growing_frames_hold_memory_one_of_them_is_granted_what_it_needs() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(800, GROWING)
    first, second = Waiter(), Waiter()
    budget.enqueue(first, 5000, WHOLE, now=0)
    budget.enqueue(second, 5000, WHOLE, now=0)
    assert (first.granted, second.granted) == (5000, 0)
    budget.release(5000, WHOLE)
    assert second.granted == 5000


def test_small_frames_overtake_others_and_have_a_reserve() -> None:
    budget = MemoryBudget(LIMIT)
    assert budget.try_reserve(1500, WHOLE)
    budget.enqueue(Waiter(), 500, WHOLE, now=0)
    assert budget.try_reserve(60, SMALL)
    budget.charge(1000)
    assert budget.try_reserve(40, SMALL)
    assert not budget.try_reserve(1, SMALL)
    waiter = Waiter()
    budget.enqueue(waiter, 50, SMALL, now=4)
    assert budget.longest_wait(now=5) == 5
    budget.release(60, SMALL)
    assert waiter.granted == 50
