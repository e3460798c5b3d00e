"""Tasks of a leader for its followers: removes lagging followers from the ISR, and wakes followers of new leaders.

Sleeps while no partition led here has followers.
"""

from __future__ import annotations

import logging

import trio

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.replication.peers import Peers
from kbroker.time_slice import TimeSlice

__all__ = ["LagWatch"]

logger = logging.getLogger(__name__)

_WAKE_DELAYS_SECONDS = (0.01, 0.1)


class LagWatch:
    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._peers = peers
        self._clock = clock
        self._is_needed = trio.Event()
        self._has_new = trio.Event()
        peers.on_replicated = self._on_replicated

    def _on_replicated(self) -> None:
        self._is_needed.set()
        self._has_new.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._wake_followers)

    async def _wake_followers(self) -> None:
        """Completes followers' delayed fetches when this broker starts to lead a partition, so they fetch it at once.

        Else they would fetch it after replica.fetch.wait.max.ms, and producers with acks=all would wait for that long.
        Twice: followers may learn of the new leader after this broker.
        """
        while True:
            await self._has_new.wait()
            self._has_new = trio.Event()
            for seconds in _WAKE_DELAYS_SECONDS:
                await trio.sleep(seconds)
                self._peers.finish_fetches()

    async def _watch(self) -> None:
        peers = self._peers
        while True:
            if not peers.replicated:
                self._is_needed = trio.Event()
                await self._is_needed.wait()
            # Half of it, as in Kafka: a lagging follower is removed after 1.5 times replica.lag.time.max.ms at most.
            await trio.sleep(peers.max_lag_ms / 2000)
            await self._check_all()

    async def _check_all(self) -> None:
        time_slice = TimeSlice(self._clock)
        for partition in list(self._peers.replicated):
            leadership = partition.leadership
            if leadership is None:
                continue  # the role changed since the last time slice
            try:
                leadership.check_lag()
                partition.update_high_watermark()
            except StorageFailure as failure:
                logger.error("Could not check the ISR of %s-%d: %s", partition.topic, partition.index, failure)
            await time_slice.checkpoint_if_over()
