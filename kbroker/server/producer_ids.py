"""Hands out producer ids, each once in the life of the cluster, from blocks that the controller gives away.

Ids that are left when the broker stops are never used. Callers that meet an empty block wait for the same new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from kbroker.controller.znodes import ProducerIdBlock

__all__ = ["ProducerIds"]


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        """`allocate`: the controller's `allocate_producer_ids`."""
        self._allocate = allocate
        self._next = 0
        self._last = -1
        self._lock = trio.Lock()

    def take(self) -> int | None:
        """The next id at once, or None if the block is used up."""
        if self._next > self._last:
            return None
        producer_id = self._next
        self._next += 1
        return producer_id

    async def wait_next(self) -> int:
        """The next id, after a new block if need be."""
        while (producer_id := self.take()) is None:
            async with self._lock:
                if self._next > self._last:  # else whoever held the lock before has brought a block
                    self._next, self._last = await self._allocate()
        return producer_id
