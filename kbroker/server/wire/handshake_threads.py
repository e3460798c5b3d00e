"""Runs steps of TLS handshakes in threads: with a large RSA key a step takes several milliseconds.

OpenSSL releases the interpreter lock, so the event loop goes on meanwhile. A step with a P-256 key is cheaper than a
thread, and runs on the loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import trio

__all__ = ["HandshakeThreads"]

_THREADS: Final = 4


class HandshakeThreads:
    __slots__ = ("_limiter", "_nursery")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(_THREADS)

    def start(self, step: Callable[[], None], done: Callable[[ssl.SSLError | None], None]) -> None:
        """Runs the step, then calls `done` on the loop with its error."""
        self._nursery.start_soon(self._run, step, done)

    async def _run(self, step: Callable[[], None], done: Callable[[ssl.SSLError | None], None]) -> None:
        problem: ssl.SSLError | None = None
        try:
            await trio.to_thread.run_sync(step, limiter=self._limiter)
        except ssl.SSLError as error:
            problem = error
        done(problem)
