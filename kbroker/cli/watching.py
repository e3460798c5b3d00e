"""Something shown again and again: in its place on a terminal, one below the other elsewhere. Ctrl-C ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from rich.console import RenderableType
from rich.live import Live

from kbroker.cli.output import is_terminal

__all__ = ["watch"]

T = TypeVar("T")


async def watch(
    read: Callable[[], Awaitable[T]],
    *,
    render: Callable[[T], RenderableType],
    write: Callable[[T], None],
    interval_s: float,
) -> None:
    """`render` is what a terminal shows, `write` prints for everybody else."""
    if not is_terminal():
        while True:
            write(await read())
            await trio.sleep(interval_s)
    first = render(await read())  # a failure must not come in the middle of an empty screen
    with Live(first, auto_refresh=False) as live:
        while True:
            live.refresh()
            await trio.sleep(interval_s)
            live.update(render(await read()))
