"""This broker's image of the cluster, its listeners, and the controller's right to write the tree.

One operation runs at a time. Every write of a controller is a multi that also checks the version of the controller
epoch's node, so a controller that was replaced cannot write. The image changes, and listeners run, only after the tree
has accepted a write.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import Change, EntityConfigsChanged, PartitionsChanged, TopicConfigsChanged, apply
from kbroker.controller.config_entities import DEFAULT_BROKERS
from kbroker.controller.image import Image, TopicImage
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    NoNode,
    SessionLost,
    Tree,
    TreeOperation,
)
from kbroker.controller.trees.writes import in_parts
from kbroker.errors import Refusal, StorageFailure
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ImageListener", "MetadataStore", "TopicPreparer"]

ImageListener = Callable[[Image, Sequence[Change]], None]
TopicPreparer = Callable[[Sequence[TopicImage]], Awaitable[None]]

_ALL_BROKERS: Final = DEFAULT_BROKERS


class MetadataStore:
    def __init__(self, tree: Tree, *, broker_id: int, config: BrokerConfig) -> None:
        self.tree = tree
        self.image = Image()
        self.is_active = False
        """Whether this broker is the controller, as far as it knows."""
        self.on_deposed: Callable[[], None] = lambda: None
        """Called when a write finds that another broker has become the controller."""
        self.on_conflict: Callable[[], None] = lambda: None
        """Called when a write finds a node that another writer has changed: the image must be read again."""
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
        """Allows writes. `epoch_version`: the version of the controller epoch's node after this broker's election."""
        self._epoch_version = epoch_version
        self.is_active = True

    def resign(self) -> None:
        self.is_active = False

    def depose(self) -> None:
        """Forbids writes, because another broker has become the controller."""
        if self.is_active:
            self.is_active = False
            self.on_deposed()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Runs one operation at a time, shielded from cancellation.

        An operation that was cancelled between its write and its commit would leave an image that differs from the
        tree.
        """
        async with self._lock:
            with trio.CancelScope(shield=True, deadline=self._deadline) as self._scope:
                yield
            if self._scope.cancelled_caught:
                raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer before shutdown.")

    def stop_by(self, deadline: float) -> None:
        """Cancels operations at `deadline`, so that a broker can stop even if its metadata store does not answer."""
        self._deadline = self._scope.deadline = deadline

    @asynccontextmanager
    async def operation(self) -> AsyncIterator[None]:
        """Like `exclusive`, for a client's request: raises Refusal(REQUEST_TIMED_OUT) if the tree does not answer."""
        try:
            async with self.exclusive():
                yield
        except (ConnectionLost, SessionLost) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        except StorageFailure as failure:
            raise self.storage_refusal(failure) from failure

    def storage_refusal(self, failure: StorageFailure) -> Refusal:
        """Returns the error for a client whose request could not be written to this broker's disk."""
        if failure.is_full:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"The disk of broker {self._broker_id} is full")
        message = f"Broker {self._broker_id} could not write its metadata: {failure}"
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, message)

    @asynccontextmanager
    async def as_controller(self) -> AsyncIterator[None]:
        """Like `operation`, but raises NOT_CONTROLLER on a broker that is not the controller."""
        async with self.operation():
            self.check_active()
            yield

    def check_active(self) -> None:
        if not self.is_active:
            raise Refusal(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    async def write(self, operations: Sequence[TreeOperation]) -> None:
        """Writes the operations in order, in as few multis as possible; each multi is all or nothing."""
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
            # During the write, a new controller may have sent us its image. That image includes this write, and must
            # not be changed by the caller's commit.
            self.check_active()

    # The image

    async def prepare(self, topics: Sequence[TopicImage]) -> None:
        for prepare in self._preparers:
            await prepare(topics)

    def commit(self, changes: Sequence[Change]) -> None:
        if changes:
            self.image = apply(self.image, changes)
            changes = [*changes, *self._apply_broker_configs(changes)]
            for listener in self._listeners:
                listener(self.image, changes)

    def republish(self, topic: str, index: int) -> None:
        """Sends a partition's state to all listeners again: a listener that could not act on it may be able to now."""
        state = self.image.partition(topic, index)
        if state is not None:
            self.commit([PartitionsChanged(topic, {index: state})])

    def _apply_broker_configs(self, changes: Sequence[Change]) -> list[Change]:
        """Applies this broker's dynamic configs. Returns config changes of all topics if topic defaults changed."""
        own = f"brokers/{self._broker_id}"
        entities = {change.entity for change in changes if isinstance(change, EntityConfigsChanged)}
        if entities.isdisjoint((own, _ALL_BROKERS)):
            return []
        before = self._config.topic_defaults
        self._config.set_dynamic(own=self.image.configs_of(own), defaults=self.image.configs_of(_ALL_BROKERS))
        if vars(before) == vars(self._config.topic_defaults):
            return []
        return [TopicConfigsChanged(topic.name, topic.configs) for topic in self.image.topics.values()]
