"""What a broker does by itself for the followers of what it leads: looks now and then whether one has fallen out of
sync, and calls them when it has come to lead something. Sleeps while nothing that is led here has followers."""

from __future__ import annotations

import logging

import trio

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.replication.peers import Peers

__all__ = ["LagWatch"]

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.002
_CALLS_SECONDS = (0.01, 0.1)


class LagWatch:
    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._peers = peers
        self._monotonic = clock.monotonic
        self._is_needed = trio.Event()
        self._has_come = trio.Event()
        peers.on_replicated = self._wake

    def _wake(self) -> None:
        self._is_needed.set()
        self._has_come.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._call)

    async def _call(self) -> None:
        """A follower whose fetch waits here would learn of a new partition when that one's time is up, and its
        producers would wait for as long. Twice, for it may hear of it later than this broker."""
        while True:
            await self._has_come.wait()
            self._has_come = trio.Event()
            for seconds in _CALLS_SECONDS:
                await trio.sleep(seconds)
                self._peers.finish_fetches()

    async def _watch(self) -> None:
        peers = self._peers
        while True:
            if not peers.replicated:
                self._is_needed = trio.Event()
                await self._is_needed.wait()
            # Half of it, as Kafka: a follower is noticed after one and a half times the lag at the latest.
            await trio.sleep(peers.max_lag_ms / 2000)
            await self._look()

    async def _look(self) -> None:
        began = self._monotonic()
        for partition in list(self._peers.replicated):
            leadership = partition.leadership
            if leadership is None:
                continue  # led by somebody else since the last slice
            try:
                leadership.check_lag()
                partition.update_high_watermark()
            except StorageFailure as failure:
                logger.error("%s-%d: its replicas cannot be looked at: %s", partition.topic, partition.index, failure)
            if self._monotonic() - began > _SLICE_SECONDS:
                await trio.lowlevel.checkpoint()
                began = self._monotonic()
