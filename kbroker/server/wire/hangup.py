"""Asks the kernel whether the peer of a socket has closed its side, though bytes that it sent may still be unread."""

from __future__ import annotations

import select
from typing import Final

__all__ = ["has_hung_up"]

_EVENTS: Final = getattr(select, "POLLRDHUP", 0)  # only on Linux; other systems report POLLHUP unasked


def has_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, _EVENTS)
    return bool(poll.poll(0))
