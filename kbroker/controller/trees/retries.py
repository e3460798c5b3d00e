"""Repeats calls of the tree until it answers, as Kafka's ZooKeeper client does ("retry until connected")."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from kbroker.controller.trees.tree import ConnectionLost, SessionLost

__all__ = ["RETRY_SECONDS", "retry_until_connected"]

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1

_Result = TypeVar("_Result")


async def retry_until_connected(
    call: Callable[[], Awaitable[_Result]], *, before_retry: Callable[[], object] = lambda: None
) -> _Result:
    """Returns the result of the first call during which the connection was not lost.

    `call` must be safe to repeat: its writes may have happened although no answer was received. `before_retry` ends the
    retries if it raises.
    """
    has_logged = False
    while True:
        try:
            return await call()
        except (ConnectionLost, SessionLost) as failure:
            if not has_logged:
                logger.warning("Lost connection to ZooKeeper; retrying: %r", failure)
            has_logged = True
        await trio.sleep(RETRY_SECONDS)
        before_retry()
