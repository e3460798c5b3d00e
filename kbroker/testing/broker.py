"""A broker for programs that are not trio programs: scripts, unittest, pytest, asyncio. In a thread of this process."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from kbroker.config import BrokerConfig
from kbroker.controller.topic_rules import DEFAULT
from kbroker.errors import UserError
from kbroker.testing.faults import Faults
from kbroker.testing.loop_thread import LoopThread
from kbroker.testing.running_broker import RunningBroker
from kbroker.testing.settings import Setting, Topics, config_for_tests, properties_of, topics_of

__all__ = ["Broker"]

T = TypeVar("T")


class Broker:
    """`with Broker(topics=["orders:3"], num_partitions=2) as broker:`, and clients connect to `broker.bootstrap`.

    Settings go by Kafka's names with underscores for dots. Without `data_dir` nothing is left behind.
    """

    def __init__(
        self, *, topics: Topics = (), data_dir: str | os.PathLike[str] | None = None, **settings: Setting
    ) -> None:
        self._properties = properties_of(settings)
        self._config = config_for_tests(self._properties, stacklevel=2)
        self._topics = topics_of(topics)
        self._stage = _Stage(None if data_dir is None else os.fspath(data_dir))
        self._running: RunningBroker | None = None
        self.faults = Faults(self._stage.call)
        weakref.finalize(self, self._stage.clear)

    def __repr__(self) -> str:
        where = "not running" if self._running is None else f"on {self.bootstrap}"
        return f"<kbroker.testing.Broker {where}>"

    # Addresses

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, what clients call bootstrap.servers."""
        return self._expect_running().bootstrap

    @property
    def host(self) -> str:
        return self._expect_running().host

    @property
    def port(self) -> int:
        return self._expect_running().port

    # Life

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self) -> Self:
        """Returns when clients may connect. After a `stop`: on the same port, with what was there."""
        if self._running is not None:
            raise UserError("the broker is running already")
        self._running = self._stage.start(self._config, self._topics, self.faults)
        if "listeners" not in self._properties:
            listeners = f"PLAINTEXT://{self._running.bootstrap}"
            self._config = config_for_tests({**self._properties, "listeners": listeners}, stacklevel=2)
        return self

    def stop(self) -> None:
        """A clean stop; topics and records stay for the next `start`. Twice does no harm."""
        self._running = None
        self._stage.stop()

    def close(self) -> None:
        """Stop, and remove the data unless `data_dir` was given. Twice does no harm."""
        self._running = None
        self._stage.clear()

    # Topics

    @property
    def topics(self) -> list[str]:
        """The names of all topics, the broker's own included."""
        running = self._expect_running()
        names: list[str] = self._stage.call(lambda: running.topics)
        return names

    def create_topic(self, name: str, partitions: int = DEFAULT, **configs: Setting) -> None:
        """Configs by Kafka's names with underscores for dots. UserError if it may not be, or is there already."""
        running = self._expect_running()

        async def create() -> None:
            await running.create_topic(name, partitions, **configs)

        self._stage.run(create)

    def delete_topic(self, name: str) -> None:
        self._stage.run(self._expect_running().delete_topic, name)

    def _expect_running(self) -> RunningBroker:
        if self._running is None:
            raise UserError("the broker is not running: use it in a `with` block, or call start()")
        return self._running


class _Stage:
    """Thread and data of a broker. Apart from it, so that a forgotten Broker can be cleared away."""

    def __init__(self, data_dir: str | None) -> None:
        self._data_dir = data_dir
        self._temporary: str | None = None
        self._thread: LoopThread | None = None
        self._process_id = os.getpid()

    def start(self, config: BrokerConfig, topics: list[tuple[str, int]], faults: Faults) -> RunningBroker:
        if self._data_dir is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="kbroker-")
        thread = LoopThread(config, self._data_dir or self._temporary or "", topics, faults)
        running = thread.start()
        self._thread = thread
        return running

    def call(self, function: Callable[[], Any]) -> Any:
        return function() if self._thread is None else self._thread.call(function)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        assert self._thread is not None
        return self._thread.run(function, *arguments)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def clear(self) -> None:
        if os.getpid() != self._process_id:
            return  # a fork of the process that it belongs to, which has a copy of us and no thread
        try:
            self.stop()
        finally:
            temporary, self._temporary = self._temporary, None
            if temporary is not None:
                with suppress(FileNotFoundError):
                    shutil.rmtree(temporary)
