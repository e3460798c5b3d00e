from __future__ import annotations

from kbroker.server.memory_budget import MemoryBudget


class Waiter:
    def __init__(self) -> None:
        self.granted = 0

    def on_memory_granted(self, size: int) -> None:
        self.granted += size


def test_what_does_not_fit_is_refused_and_what_is_released_can_be_had_again() -> None:
    budget = MemoryBudget(100)
    assert budget.try_reserve(60)
    assert not budget.try_reserve(50)
    budget.release(20)
    assert budget.try_reserve(50)
    assert budget.used == 90


def test_the_line_is_served_in_order_and_nobody_overtakes_it() -> None:
    budget = MemoryBudget(100)
    assert budget.try_reserve(90)
    large, small = Waiter(), Waiter()
    budget.wait(large, 80, now=0)
    budget.wait(small, 5, now=1)
    assert not budget.try_reserve(1)
    budget.release(10)
    assert (large.granted, small.granted) == (0, 0)
    budget.release(70)
    assert (large.granted, small.granted, budget.used) == (80, 5, 95)
    assert budget.try_reserve(5)


def test_who_leaves_the_line_lets_the_next_one_in() -> None:
    budget = MemoryBudget(100)
    assert budget.try_reserve(90)
    large, small = Waiter(), Waiter()
    budget.wait(large, 80, now=0)
    budget.wait(small, 5, now=3)
    assert budget.longest_wait(now=10) == 10
    budget.leave(large)
    assert small.granted == 5
    assert budget.longest_wait(now=10) == 0
    budget.leave(large)


def test_more_than_the_whole_budget_passes_alone() -> None:
    budget = MemoryBudget(100)
    waiter = Waiter()
    assert budget.try_reserve(10)
    assert not budget.try_reserve(1000)
    budget.wait(waiter, 1000, now=0)
    assert waiter.granted == 0
    budget.release(10)
    assert waiter.granted == 1000
    assert budget.is_exhausted()


def test_responses_are_charged_even_when_there_is_no_room() -> None:
    budget = MemoryBudget(100)
    budget.charge(150)
    assert budget.is_exhausted()
    waiter = Waiter()
    budget.wait(waiter, 10, now=0)
    budget.charge(-100)
    assert (waiter.granted, budget.used) == (10, 60)
