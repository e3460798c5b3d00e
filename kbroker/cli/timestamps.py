"""Timestamps as text: parses the TIME of options, formats timestamps of records.

TIME is ISO 8601 (UTC unless it has an offset), milliseconds since 1970, or an age like 15m.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import click

from kbroker.cli.command import Function
from kbroker.clock import Clock, SystemClock

__all__ = [
    "duration_option",
    "format_timestamp",
    "parse_timestamp",
    "parse_timestamp_option",
    "since_option",
    "until_option",
]

_AGE = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_timestamp(text: str, clock: Clock) -> int:
    """Returns milliseconds since 1970. Raises ValueError or OverflowError if the text is not a TIME."""
    if text.isascii() and text.isdigit():
        return int(text)
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(clock.now_ms() - int(age[1]) * _UNIT_MS[age[2]], 0)
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000)


def parse_timestamp_option(_ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Parses an option that takes a TIME (click callback)."""
    if text is None:
        return None
    try:
        return parse_timestamp(text, SystemClock())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"'{text}' is not a timestamp. Use ISO 8601 (2026-01-31T12:00), milliseconds since 1970, "
            "or an age (15m for 15 minutes ago)."
        ) from None


def duration_option(option: str, argument: str, about: str) -> Callable[[Function], Function]:
    """Returns an option that takes a time span like 15m. The command gets milliseconds, or None without the option."""

    def parse(_ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        found = _AGE.fullmatch(text)
        if found is None:
            raise click.BadParameter(f"'{text}' is not a time span. Use for example 90s, 15m, 12h or 7d.")
        return int(found[1]) * _UNIT_MS[found[2]]

    return click.option(option, argument, metavar="DURATION", callback=parse, help=about)


since_option = click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=parse_timestamp_option,
    help="Start at a timestamp: ISO 8601, milliseconds since 1970, or an age like 15m.",
)
until_option = click.option(
    "--until",
    "until_ms",
    metavar="TIME",
    callback=parse_timestamp_option,
    help="Stop in each partition before the first record at or after a timestamp.",
)


def format_timestamp(timestamp_ms: int) -> str | None:
    """Returns ISO 8601 in UTC with milliseconds; None for no timestamp (-1) or one that datetime cannot represent."""
    if timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
