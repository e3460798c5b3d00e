"""A moment as a person writes it: ISO 8601 (UTC unless it says otherwise), milliseconds since the epoch, or 15m ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import click

from kbroker.clock import Clock, SystemClock

__all__ = ["moment", "parse_moment"]

_AGO = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, clock: Clock) -> int:
    """Milliseconds since the epoch; ValueError if it is no moment."""
    if text.isascii() and text.isdigit():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(clock.now_ms() - int(ago[1]) * _UNIT_MS[ago[2]], 0)
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000)


def moment(_ctx: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """A callback for options that name a moment."""
    if text is None:
        return None
    try:
        return parse_moment(text, SystemClock())
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"'{text}' is no moment: write 2026-01-31T12:00, milliseconds since 1970, or 15m for 15 minutes ago"
        ) from None
