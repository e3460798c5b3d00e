"""The image that this broker holds, who follows it, and the controller's right to write the tree.

One operation at a time. Every write of a controller is a multi that also checks the controller epoch's node, so one
that lost its place cannot write. The image changes, and listeners run, only after the tree has taken a write.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from kbroker.config import BrokerConfig
from kbroker.controller import znodes
from kbroker.controller.changes import Change, EntityConfigsChanged, PartitionsChanged, TopicConfigsChanged, apply
from kbroker.controller.image import Image, Topic
from kbroker.controller.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    NoNode,
    Operation,
    SessionLost,
    Tree,
)
from kbroker.controller.writes import in_parts
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ImageListener", "Ledger", "TopicPreparer"]

ImageListener = Callable[[Image, Sequence[Change]], None]
TopicPreparer = Callable[[Sequence[Topic]], Awaitable[None]]

_ALL_BROKERS: Final = znodes.DEFAULT_BROKERS


class Ledger:
    def __init__(self, tree: Tree, *, broker_id: int, config: BrokerConfig) -> None:
        self.tree = tree
        self.image = Image()
        self.is_active = False
        """Whether this broker is the controller, as far as it knows."""
        self.on_deposed: Callable[[], None] = lambda: None
        """Called when a write finds that another broker has become the controller."""
        self.on_conflict: Callable[[], None] = lambda: None
        """Called when a write finds a state that somebody else has changed: the image is to be read anew."""
        self._broker_id = broker_id
        self._config = config
        self._epoch_version = ANY_VERSION
        self._listeners: list[ImageListener] = []
        self._preparers: list[TopicPreparer] = []
        self._lock = trio.Lock()
        self._deadline = math.inf
        self._scope = trio.CancelScope()

    def add_listener(self, listener: ImageListener) -> None:
        self._listeners.append(listener)

    def add_preparer(self, preparer: TopicPreparer) -> None:
        self._preparers.append(preparer)

    # The right to write

    def activate(self, epoch_version: int) -> None:
        """`epoch_version`: of the controller epoch's node, as this broker's election left it."""
        self._epoch_version = epoch_version
        self.is_active = True

    def resign(self) -> None:
        self.is_active = False

    def depose(self) -> None:
        """Another broker has become the controller."""
        if self.is_active:
            self.is_active = False
            self.on_deposed()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """One operation at a time, and to its end: one that stopped halfway would leave tree and image apart."""
        async with self._lock:
            with trio.CancelScope(shield=True, deadline=self._deadline) as self._scope:
                yield
            if self._scope.cancelled_caught:
                raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The broker stops, and the metadata store does not answer.")

    def stop_by(self, deadline: float) -> None:
        """From then on nothing is waited for: a broker can stop whatever becomes of its metadata store."""
        self._deadline = self._scope.deadline = deadline

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        """Likewise, for what somebody asked for: they are told if the tree does not answer."""
        try:
            async with self.alone():
                yield
        except (ConnectionLost, SessionLost) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Likewise, for what the controller alone may do."""
        async with self.operation():
            self.check_active()
            yield

    def check_active(self) -> None:
        if not self.is_active:
            raise Refusal(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    async def write(self, operations: Sequence[Operation]) -> None:
        """All of them in order, in as few multis as they fit into; each multi is all or nothing."""
        for part in in_parts(operations):
            try:
                await self.tree.multi([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *part])
            except (BadVersion, NoNode) as failure:
                if failure.index != 0:
                    raise
                self.depose()
                raise Refusal(ErrorCode.NOT_CONTROLLER, "Another broker has become the controller.") from failure
            except (ConnectionLost, SessionLost) as failure:
                raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        if operations:
            # Another controller may have told us of its own image meanwhile: it has read what was written here.
            self.check_active()

    # The image

    async def prepare(self, topics: Sequence[Topic]) -> None:
        for prepare in self._preparers:
            await prepare(topics)

    def commit(self, changes: Sequence[Change]) -> None:
        if changes:
            self.image = apply(self.image, changes)
            changes = [*changes, *self._take_broker_configs(changes)]
            for listener in self._listeners:
                listener(self.image, changes)

    def retell(self, topic: str, index: int) -> None:
        """A partition's state once more, to all who listen: whoever could not follow it before may be able to now."""
        state = self.image.partition(topic, index)
        if state is not None:
            self.commit([PartitionsChanged(topic, {index: state})])

    def _take_broker_configs(self, changes: Sequence[Change]) -> list[Change]:
        """Puts this broker's dynamic configs into effect; topics that fall back to them are changed along."""
        own = f"brokers/{self._broker_id}"
        if not any(isinstance(each, EntityConfigsChanged) and each.entity in (own, _ALL_BROKERS) for each in changes):
            return []
        before = self._config.topic_defaults
        self._config.set_dynamic(self.image.configs_of(own), self.image.configs_of(_ALL_BROKERS))
        if vars(before) == vars(self._config.topic_defaults):
            return []
        return [TopicConfigsChanged(topic.name, topic.configs) for topic in self.image.topics.values()]
