"""What commands print: tables for people, JSON for programs. Colour and cut columns only on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kbroker.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Cell",
    "confirm_deletion",
    "counted",
    "is_terminal",
    "print_json",
    "print_json_line",
    "print_table",
    "progress",
    "rich_table",
    "tame",
    "time_text",
]

Cell = str | int | None

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def tame(text: str) -> str:
    """What others wrote must not move a terminal's cursor or change its colours."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Numbers to the right, nothing for None. In a pipe every cell is whole, and every row one line."""
    if is_terminal():
        from rich.console import Console

        Console().print(rich_table(columns, rows))
    else:
        _print_plain(columns, rows)


def _numeric(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[bool]:
    return [
        any(isinstance(row[number], int) for row in rows)
        and all(isinstance(row[number], int) or row[number] is None for row in rows)
        for number in range(len(columns))
    ]


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    numeric = _numeric(columns, rows)
    lines = [list(map(str.upper, columns)), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    for line in lines:
        aligned = (
            text.rjust(width) if is_numeric else text.ljust(width)
            for text, width, is_numeric in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(aligned).rstrip())


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """The table for a terminal, to print or to put into something larger."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name, is_numeric in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(name.upper(), justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(tame(_text(cell))) for cell in row))
    return table


def progress(length: int | None, label: str, *, worth_showing: int) -> AbstractContextManager[Any]:
    """A bar on stderr, or None: for work of a known length that takes a while, where somebody is looking."""
    if length is None or length < worth_showing or not sys.stderr.isatty():
        return nullcontext()
    return click.progressbar(length=length, label=label, file=sys.stderr)


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def time_text(timestamp_ms: int) -> str | None:
    """UTC, to the millisecond; None for a timestamp that nobody set or that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def confirm_deletion(names: Sequence[str], loss: str, *, yes: bool) -> None:
    """Asks whoever sits at a terminal; a program is taken at its word. UserError: the answer was no."""
    if not yes and sys.stdin.isatty() and not click.confirm(f"delete {', '.join(names)} with {loss}?", err=True):
        raise UserError("nothing was deleted")
