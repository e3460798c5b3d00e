"""Output of commands: tables for people, JSON for programs. Uses colour and wraps columns only on a terminal."""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from kbroker.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Cell",
    "confirm",
    "escape_control_characters",
    "format_bytes",
    "is_terminal",
    "output_has_reader",
    "pluralize",
    "print_json",
    "print_json_line",
    "print_table",
    "progress",
    "rich_table",
]

Cell = str | int | None

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_control_characters(text: str) -> str:
    """Escapes control characters, so that record contents cannot control the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def output_has_reader() -> bool:
    """Whether stdout can be written: False if it is a pipe whose reader has ended."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return True  # not a file
    watched = select.poll()
    watched.register(descriptor, 0)  # errors only
    return not watched.poll(0)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints a table; None is an empty cell. Outside a terminal no cell is cut, and every row is one line."""
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
    """Returns the table that a terminal shows."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name, is_numeric in zip(columns, _numeric(columns, rows), strict=True):
        table.add_column(name.upper(), justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_control_characters(_text(cell))) for cell in row))
    return table


def progress(length: int | None, label: str, *, worth_showing: int) -> AbstractContextManager[Any]:
    """Returns a context with a progress bar on stderr.

    The context yields None instead if stderr is not a terminal, or the length is unknown or below `worth_showing`.
    """
    if length is None or length < worth_showing or not sys.stderr.isatty():
        return nullcontext()
    return click.progressbar(length=length, label=label, file=sys.stderr)


def format_bytes(count: float) -> str:
    """Returns the number with a unit: 999 B, 1.5 KiB, 20.0 GiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def pluralize(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation before something is lost, unless `yes` is set.

    Raises UserError if the answer is no, or there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("This cannot be undone, and stdin is not a terminal to ask on. Add --yes to confirm.")
    if not click.confirm(question, err=True):
        raise UserError("Nothing was changed")
