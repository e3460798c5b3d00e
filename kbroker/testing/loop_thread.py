"""A thread that runs one broker in a trio loop, and calls from other threads into that loop.

Works with and without an event loop in the caller's thread. A call blocks the caller's thread until it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import trio

from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.testing.broker_clock import BrokerClock
from kbroker.testing.faults import Faults
from kbroker.testing.logins import BrokerUsers
from kbroker.testing.lone_exceptions import lone_exceptions
from kbroker.testing.running_broker import RunningBroker, running_with
from kbroker.testing.tls_files import TlsFiles

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread:
    """Thread of one broker. `start` raises the exception of a failed start."""

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: str,
        topics: Sequence[tuple[str, int]],
        faults: Faults,
        clock: BrokerClock,
        users: BrokerUsers | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self._clock = clock
        self._users = users
        self._config = config
        self._data_dir = data_dir
        self._topics = topics
        self._faults = faults
        self._ready: Future[tuple[RunningBroker, trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._failure: BaseException | None = None
        # A daemon thread: an interrupted test must not keep the interpreter alive.
        self._thread = threading.Thread(target=self._main, name="kbroker", daemon=True)

    def start(self) -> RunningBroker:
        self._thread.start()
        try:
            return self._ready.result()[0]
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the broker and joins the thread. Raises the exception that ended the broker, if any.

        No-op if the broker is already stopped.
        """
        with suppress(Exception):
            broker, token, _ = self._ready.result()
            token.run_sync_soon(broker.ask_to_stop)
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, function: Callable[[], T]) -> T:
        """Runs a synchronous function in the loop. Calls it directly if the caller is already in the loop."""
        if threading.current_thread() is self._thread:
            return function()

        async def call() -> T:
            return function()

        return self.run(call)

    def run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Runs an async function as a task of the loop and returns its result."""
        done: Future[T] = Future()

        async def task() -> None:
            try:
                done.set_result(await function(*arguments))
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        _, token, nursery = self._ready.result()
        try:
            token.run_sync_soon(nursery.start_soon, task)
        except trio.RunFinishedError:
            raise UserError("The broker is not running") from None
        return done.result()

    def _main(self) -> None:
        try:
            with lone_exceptions():
                trio.run(self._serve, clock=self._clock)
        except BaseException as error:
            if self._ready.done():
                self._failure = error
            else:
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        serving = running_with(
            self._config, self._data_dir, self._topics, self._faults, self._clock, self._users, self._tls
        )
        async with trio.open_nursery() as nursery, serving as broker:
            self._ready.set_result((broker, trio.lowlevel.current_trio_token(), nursery))
            await broker.wait_stopped()
