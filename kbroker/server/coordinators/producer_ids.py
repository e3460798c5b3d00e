"""Returns producer ids that are unique in the cluster, from blocks that the controller allocates.

The rest of a block is lost when the broker stops. Callers that find the block used up wait for one new block together.
In a cluster a second block is kept in reserve, so that new producers can begin while ZooKeeper is not available.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import ConnectionLost, SessionLost
from kbroker.controller.trees.znodes import ProducerIdBlock
from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ProducerIds"]

_WAIT_SECONDS: Final = 1.0


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        """`allocate` allocates a block: the controller's `allocate_producer_ids`."""
        self._allocate = allocate
        self._next = 0
        self._last = -1
        self._reserve: ProducerIdBlock | None = None
        self._reserve_used = trio.Event()
        self._lock = trio.Lock()

    def next_or_none(self) -> int | None:
        """Returns the next id, or None if the block and the reserve are used up."""
        if self._next > self._last:
            if self._reserve is None:
                return None
            self._next, self._last = self._reserve
            self._reserve = None
            self._reserve_used.set()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def wait_next(self) -> int:
        """Returns the next id, after a new block was allocated if necessary.

        Raises COORDINATOR_LOAD_IN_PROGRESS if the tree does not answer within a second: clients retry it. Apache Kafka
        3.9 answers this code at once, without a wait.
        """
        try:
            with trio.move_on_after(_WAIT_SECONDS):
                while (producer_id := self.next_or_none()) is None:
                    async with self._lock:
                        # Another task may have allocated a block while this one waited for the lock.
                        if self._next > self._last and self._reserve is None:
                            self._next, self._last = await self._allocate()
                return producer_id
        except (ConnectionLost, SessionLost, StorageFailure):
            pass
        raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Producer ID block is full. Waiting for next block")

    async def keep_reserve(self) -> None:
        """Allocates a block in advance, and the next one when that block is in use; for as long as the broker runs."""
        while True:
            async with self._lock:
                if self._reserve is None:
                    self._reserve = await retry_until_connected(self._allocate)
            await self._reserve_used.wait()
            self._reserve_used = trio.Event()
