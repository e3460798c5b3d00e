"""Gate of a data directory: whether it accepts records.

| state | `is_closed` | opens again |
|--|--|--|
| disk full | yes | when the reserve is restored and there is space beyond it (`LogDirs.reopen_full`) |
| broken (`is_offline`) | yes | after a restart |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from kbroker.errors import RecoveryNeeded, StorageFailure
from kbroker.log.append_result import AppendResult
from kbroker.log.files.space_reserve import SpaceReserve
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["StorageGate"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StorageGate:
    __slots__ = ("_broker_id", "_lock", "_reserve", "is_closed", "is_full", "is_offline", "path", "refusal")

    def __init__(self, path: str, *, broker_id: int = -1, reserve: SpaceReserve | None = None) -> None:
        self.path = path
        self._reserve = reserve
        self._lock = threading.Lock()  # of the reserve: it is restored in a thread, and used on the loop and in threads
        self.is_closed = False
        self.is_offline = False
        self.is_full = False
        self.refusal = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR)
        """Result of an append while the gate is closed: names the cause."""
        self._broker_id = broker_id

    def close(self, failure: StorageFailure) -> None:
        if isinstance(failure, RecoveryNeeded):
            return  # concerns one log, not the directory
        if failure.is_full:
            if not self.is_full:
                logger.error(
                    "Data directory %s is full; produce requests are refused until space is free: %s",
                    self.path,
                    failure,
                )
            self.is_full = True
        elif not self.is_offline:
            self.is_offline = True
            logger.error("Data directory %s failed and is offline until a restart: %s", self.path, failure)
        self.is_closed = True
        message = (
            f"The data directory {self.path} of broker {self._broker_id} failed and is offline"
            if self.is_offline
            else f"The disk of broker {self._broker_id} is full"
        )
        self.refusal = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=message)

    def restore_reserve(self) -> bool:
        """See `SpaceReserve.restore`. Blocks. Raises StorageFailure if the disk fails."""
        with self._lock:
            return self._reserve is not None and self._reserve.restore()

    def open(self) -> None:
        """Accepts records again, because a full disk has space."""
        if self.is_full and not self.is_offline:
            self.is_closed = self.is_full = False
            self.refusal = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR)
            logger.warning("Data directory %s has free space again; accepting writes", self.path)

    def make_room(self, failure: StorageFailure) -> bool:
        """Releases a part of the reserve if the disk is full. Returns whether the caller should try again.

        The gate closes, so that records do not take the space.
        """
        if not failure.is_full:
            return False
        self.close(failure)
        with self._lock:
            if self._reserve is None or not self._reserve.release():
                return False
        logger.info("Used a part of the reserved space of %s", self.path)
        return True

    def with_reserve(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls a function that has to work on a full disk: again with each part of the reserve that is released."""
        while True:
            try:
                return call(*arguments)
            except StorageFailure as failure:
                if not self.make_room(failure):
                    raise
