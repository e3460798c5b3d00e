"""A canary task counts its turns while a request is handled.

The clock advances by a quarter of a slice with each reading, so the number of slices depends on the number of elements
alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import trio

from kbroker.server.requests.thread_work import ThreadWork
from tests.server.handlers.harness import HandlerBroker, StillClock

__all__ = ["FEW_TURNS", "QUARTER_OF_A_SLICE", "CountedWork", "WorkOnTheLoop", "ask_beside_canary", "turns_beside"]

QUARTER_OF_A_SLICE: Final = 0.0005
FEW_TURNS: Final = 20
"""Turns of the canary that any request may take: the task of a handler, the checkpoints of the test itself."""


class CountedWork:
    """Takes the place of the broker's threads, and counts what they do."""

    def __init__(self, broker: HandlerBroker) -> None:
        self.runs = 0
        self._work = broker.context.thread_work
        broker.context.thread_work = cast(ThreadWork, self)

    async def run(self, work: Callable[..., Any]) -> Any:
        self.runs += 1
        return await self._work.run(work)


class WorkOnTheLoop:
    """Takes the place of the broker's threads: what several requests have to do is done in the same round."""

    async def run(self, work: Callable[..., Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work(pause=lambda: None)


async def turns_beside(broker: HandlerBroker, work: Callable[[], Awaitable[None]]) -> int:
    """Returns how many turns another task gets while the work runs."""
    turns = 0

    async def canary() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    clock = broker.context.clock
    assert isinstance(clock, StillClock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(canary)
        clock.ticks = QUARTER_OF_A_SLICE
        await work()
        clock.ticks = 0.0
        nursery.cancel_scope.cancel()
    return turns


async def ask_beside_canary(broker: HandlerBroker, key: int, version: int, **members: Any) -> tuple[Any, int]:
    """Returns the response, and how many turns another task got until it arrived.

    Threads would give it turns as long as they work, however the loop is used: their work is done on the loop.
    """
    responses: list[Any] = []
    threads = broker.context.thread_work
    broker.context.thread_work = cast(ThreadWork, WorkOnTheLoop())

    async def ask() -> None:
        responses.append(await broker.ask(key, version, **members))

    turns = await turns_beside(broker, ask)
    broker.context.thread_work = threads
    return responses[0], turns
