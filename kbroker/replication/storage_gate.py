"""Whether a data directory takes writes. Full: closed, tried again at the next tick. Broken: closed until restart."""

from __future__ import annotations

import logging

from kbroker.errors import RecoveryNeeded, StorageFailure

__all__ = ["StorageGate"]

logger = logging.getLogger(__name__)


class StorageGate:
    __slots__ = ("is_closed", "is_full", "is_offline", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_closed = False
        self.is_offline = False
        self.is_full = False

    def close(self, failure: StorageFailure) -> None:
        if isinstance(failure, RecoveryNeeded):
            return  # the matter of one log
        if failure.is_full:
            if not self.is_full:
                logger.error("%s is full: produce is refused until there is room (%s)", self.path, failure)
            self.is_full = True
        elif not self.is_offline:
            self.is_offline = True
            logger.error("%s is offline until the broker is restarted: %s", self.path, failure)
        self.is_closed = True

    def on_written(self) -> None:
        if self.is_full:
            self.is_full = False
            logger.warning("%s has room again: produce goes on", self.path)

    def tick(self) -> None:
        """About once a second: let one write find out whether there is room again."""
        if self.is_closed and not self.is_offline:
            self.is_closed = False
