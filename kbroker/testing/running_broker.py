"""A broker in the same trio loop as whoever uses it, on a free port of the loopback interface."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from kbroker.config import BrokerConfig
from kbroker.server.broker import run_broker

__all__ = ["RunningBroker", "running_broker"]


class RunningBroker:
    def __init__(self) -> None:
        self.host = ""
        self.port = 0
        self._asked_to_stop = trio.Event()
        self._has_stopped = trio.Event()

    async def stop(self) -> None:
        """A clean stop; returns when everything is on the disk. Twice does no harm."""
        self._asked_to_stop.set()
        await self.wait_stopped()

    async def wait_stopped(self) -> None:
        await self._has_stopped.wait()

    async def _run(
        self,
        config: BrokerConfig,
        data_dir: str,
        topics: Sequence[tuple[str, int]],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        def on_ready(addresses: list[tuple[str, int]]) -> None:
            self.host, self.port = addresses[0]
            task_status.started()

        try:
            await run_broker(config, data_dir=data_dir, topics=topics, on_ready=on_ready, stop=self._asked_to_stop)
        finally:
            self._has_stopped.set()


@asynccontextmanager
async def running_broker(
    data_dir: str | os.PathLike[str],
    properties: Mapping[str, str] | None = None,
    *,
    topics: Sequence[tuple[str, int]] = (),
) -> AsyncIterator[RunningBroker]:
    """Stopped cleanly on leaving. `properties` go by Kafka's names; `topics` are there from the start."""
    config = BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0", **(properties or {})})
    broker = RunningBroker()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker._run, config, os.fspath(data_dir), topics)
        try:
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                await broker.stop()
