"""The way back to whoever asked a coordinator: an answer, or an error in the shape of its API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.protocol.error_codes import ErrorCode

__all__ = ["Ticket", "deliver"]

logger = logging.getLogger(__name__)


class Ticket(NamedTuple):
    reply: Callable[[Any], None]
    refuse: Callable[[int], None]


def deliver(ticket: Ticket, response: Any) -> None:
    """One answer that cannot be sent must not keep the others from theirs."""
    try:
        ticket.reply(response)
    except Exception:
        logger.exception("an answer of a coordinator could not be sent")
        ticket.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
