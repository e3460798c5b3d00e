"""Periodic output until Ctrl-C: redrawn in place on a terminal, printed one after another elsewhere."""

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
    """Reads and shows a value every `interval_s` seconds: with `render` on a terminal, with `write` elsewhere."""
    if not is_terminal():
        while True:
            write(await read())
            await trio.sleep(interval_s)
    first = render(await read())  # before Live: an error on the first read must not leave an empty screen
    with Live(first, auto_refresh=False) as live:
        while True:
            live.refresh()
            await trio.sleep(interval_s)
            live.update(render(await read()))
