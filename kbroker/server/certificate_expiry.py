"""Warns in the log, once a day, while the certificate of a listener expires soon or has expired."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import trio

from kbroker.clock import Clock

if TYPE_CHECKING:
    from kbroker.server.listener_tls import ReloadableTls

__all__ = ["expiry_warnings", "watch_expiry"]

logger = logging.getLogger(__name__)

_WARNING_DAYS: Final = 30
_DAY_SECONDS: Final = 86_400


async def watch_expiry(listeners: Mapping[str, ReloadableTls], clock: Clock) -> None:
    while True:
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        for text, fields in expiry_warnings(listeners.values(), now):
            logger.warning(text, extra=fields)
        await trio.sleep(_DAY_SECONDS)


def expiry_warnings(listeners: Iterable[ReloadableTls], now: datetime) -> list[tuple[str, dict[str, object]]]:
    """Returns a line, and its structured fields, for each certificate that has expired or expires within 30 days."""
    warnings: list[tuple[str, dict[str, object]]] = []
    for tls in listeners:
        left = tls.certificate.not_after - now
        if left.days >= _WARNING_DAYS:
            continue
        when = "has expired: clients cannot connect" if left.days < 0 else f"expires in {left.days} days"
        text = f"The certificate of listener {tls.name} {when} ({tls.certificate.not_after:%Y-%m-%d %H:%M} UTC)"
        warnings.append((text, {"listener": tls.name, "not_after": tls.certificate.not_after.isoformat()}))
    return warnings
