"""Divides long work on the event loop into slices of 2 ms, so that requests never wait long for their turn.

Work over all partitions, groups or records of a broker runs on the loop, since it changes the loop's state. It calls
`checkpoint_if_over` after each item. Requests with many elements use `respond_in_slices` or `finish_in_slices`, which
end with Unwanted if the caller has said so with `end_unless`: the client has left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, Final, TypeVar

import trio

from kbroker.clock import Clock

__all__ = [
    "TimeSlice",
    "Unwanted",
    "check_wanted",
    "end_unless",
    "finish_at_once",
    "finish_in_slices",
    "map_in_slices",
    "respond_in_slices",
    "respond_once_in_slices",
    "run_in_slices",
    "turn_of_loop",
]

T = TypeVar("T")
R = TypeVar("R")

_SLICE_SECONDS: Final = 0.002

# One lock for each loop: the slices of many large requests take turns, so that a round of the loop has one of them.
_turn: Final[trio.lowlevel.RunVar[trio.Lock]] = trio.lowlevel.RunVar("kbroker.time_slice.turn")
_is_wanted: Final[ContextVar[Callable[[], bool] | None]] = ContextVar("kbroker.time_slice.is_wanted", default=None)


class Unwanted(Exception):
    """Ends long work between two slices: its result is not wanted any more."""


def end_unless(is_wanted: Callable[[], bool] | None) -> None:
    """Ends the work of this task with Unwanted before a slice for which `is_wanted` returns False. None: never."""
    _is_wanted.set(is_wanted)


def check_wanted() -> None:
    """Raises Unwanted if the work of this task is not wanted any more."""
    is_wanted = _is_wanted.get()
    if is_wanted is not None and not is_wanted():
        raise Unwanted


class TimeSlice:
    """The first slice begins with the object: create one for each run of the work."""

    __slots__ = ("_end", "_monotonic")

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._end = self._monotonic() + _SLICE_SECONDS

    def is_over(self) -> bool:
        return self._monotonic() >= self._end

    async def checkpoint_if_over(self) -> bool:
        """Lets other tasks run if the slice is over, and begins the next slice.

        Returns whether other tasks ran: the caller must then check again everything that they may have changed.
        """
        if not self.is_over():
            return False
        await trio.lowlevel.checkpoint()
        self._end = self._monotonic() + _SLICE_SECONDS
        return True


def finish_in_slices(clock: Clock, steps: Generator[None, None, R]) -> Any:
    """Returns the result of `steps`, which yields after each element.

    If that takes longer than one slice, returns a coroutine that does the rest. Other tasks then run between two steps,
    so `steps` must not rely on anything that they may change. The result may be a coroutine too: a second step.
    """
    finished: list[R] = []
    if _run_one_slice(clock, steps, finished):
        return finished[0]
    return _finish_all_later(clock, steps, finished)


def finish_at_once(steps: Generator[None, None, R]) -> R:
    """Returns the result of `steps`, in this turn however long it takes."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result


async def run_in_slices(clock: Clock, steps: Generator[None, None, R]) -> R:
    """Returns the result of `steps`, like `finish_in_slices`, for a caller that has a task."""
    finished: list[R] = []
    return finished[0] if _run_one_slice(clock, steps, finished) else await _finish_later(clock, steps, finished)


async def _finish_all_later(clock: Clock, steps: Generator[None, None, Any], finished: list[Any]) -> Any:
    result = await _finish_later(clock, steps, finished)
    return await result if result.__class__ is CoroutineType else result


async def _finish_later(clock: Clock, steps: Generator[None, None, R], finished: list[R]) -> R:
    turn = turn_of_loop()
    while True:
        async with turn:
            check_wanted()
            if _run_one_slice(clock, steps, finished):
                return finished[0]


def _run_one_slice(clock: Clock, steps: Generator[None, None, R], finished: list[R]) -> bool:
    """Runs steps until the slice is over. Returns whether they have ended; then `finished` has their result."""
    monotonic = clock.monotonic
    end = monotonic() + _SLICE_SECONDS
    try:
        while True:
            next(steps)
            if monotonic() >= end:
                return False
    except StopIteration as stop:
        finished.append(stop.value)
        return True


def respond_in_slices(
    clock: Clock, function: Callable[[T], R], items: Iterable[T], respond: Callable[[list[R]], Any]
) -> Any:
    """Returns `respond` of the results of `function` for all items, in order.

    If that takes longer than one slice, returns a coroutine that does the rest. Other tasks then run between two items,
    so `function` must not rely on anything that they may change. `respond` may return a coroutine too: a second step.
    """
    results: list[R] = []
    remaining = iter(items)
    if _fill_one_slice(clock, function, remaining, results):
        return respond(results)
    return _respond_later(clock, function, remaining, results, respond)


def respond_once_in_slices(
    clock: Clock, function: Callable[[T], R], items: Iterable[T], respond: Callable[[list[R]], Any]
) -> Any:
    """Like `respond_in_slices`, with one result for an item that occurs several times."""
    unique: dict[T, None] = {}

    def add(item: T) -> None:
        unique[item] = None

    return respond_in_slices(clock, add, items, lambda _: respond_in_slices(clock, function, unique, respond))


async def map_in_slices(clock: Clock, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Returns the results of `function` for all items, in order. Other tasks run between the slices."""
    results: list[R] = []
    await _fill(clock, function, iter(items), results)
    return results


async def _respond_later(
    clock: Clock,
    function: Callable[[T], R],
    remaining: Iterator[T],
    results: list[R],
    respond: Callable[[list[R]], Any],
) -> Any:
    await _fill(clock, function, remaining, results)
    response = respond(results)
    return await response if response.__class__ is CoroutineType else response


async def _fill(clock: Clock, function: Callable[[T], R], remaining: Iterator[T], results: list[R]) -> None:
    turn = turn_of_loop()
    while True:
        async with turn:  # a checkpoint, also if no other request waits for the turn
            check_wanted()
            if _fill_one_slice(clock, function, remaining, results):
                return


def _fill_one_slice(clock: Clock, function: Callable[[T], R], remaining: Iterator[T], results: list[R]) -> bool:
    """Appends results until the slice is over. Returns whether all items are done."""
    monotonic = clock.monotonic
    end = monotonic() + _SLICE_SECONDS
    for item in remaining:
        results.append(function(item))
        if monotonic() >= end:
            return False
    return True


def turn_of_loop() -> trio.Lock:
    """Returns the lock that large requests hold while they work on the loop: one of them in each round."""
    try:
        return _turn.get()
    except LookupError:
        turn = trio.Lock()
        _turn.set(turn)
        return turn
