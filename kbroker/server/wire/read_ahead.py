"""Reads cold ranges of files into the page cache in threads, so that the event loop never waits for a disk."""

from __future__ import annotations

from collections.abc import Callable

import trio

from kbroker.server.wire.sendfile import SendableSlice, read_ahead

__all__ = ["ReadAhead"]

_THREADS = 8


class ReadAhead:
    __slots__ = ("_limiter", "_nursery")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(_THREADS)

    def start(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self._nursery.start_soon(self._read, file_slice, position, size, done)

    async def _read(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        try:
            # Not abandoned when cancelled: the file must stay open as long as the thread reads it.
            await trio.to_thread.run_sync(read_ahead, file_slice.fileno(), position, size, limiter=self._limiter)
        except OSError:
            pass  # sending the range will fail with the same error
        finally:
            done()
