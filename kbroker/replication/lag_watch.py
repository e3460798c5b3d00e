"""Looks now and then whether a follower has fallen out of sync. Sleeps while nothing that is led here has followers."""

from __future__ import annotations

import logging

import trio

from kbroker.clock import Clock
from kbroker.errors import StorageFailure
from kbroker.replication.peers import Peers

__all__ = ["LagWatch"]

logger = logging.getLogger(__name__)

_SLICE_SECONDS = 0.002


class LagWatch:
    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._peers = peers
        self._monotonic = clock.monotonic
        self._is_needed = trio.Event()
        peers.on_replicated = self._wake

    def _wake(self) -> None:
        self._is_needed.set()

    async def run(self) -> None:
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
