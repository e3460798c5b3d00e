"""A response that a coordinator still owes: how to send it, or an error in the format of its API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.protocol.error_codes import ErrorCode

__all__ = ["PendingResponse", "deliver"]

logger = logging.getLogger(__name__)


class PendingResponse(NamedTuple):
    reply: Callable[[Any], None]
    refuse: Callable[[int], None]
    """Sends an error response with this code."""


def deliver(pending: PendingResponse, response: Any) -> None:
    """Sends a response. If that fails, sends UNKNOWN_SERVER_ERROR: the caller has other responses to send."""
    try:
        pending.reply(response)
    except Exception:
        logger.exception("Unexpected error sending a coordinator response")
        pending.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
