"""Handles the controller's requests to this broker: checks their epochs, then applies them to the image.

Never decides anything: a request from a newer controller than the known one makes this broker follow that controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

import trio

from kbroker.controller.changes import Change, ControllerChanged, TopicRemoved
from kbroker.controller.cluster.control_requests import LEADER_DURING_DELETE
from kbroker.controller.cluster.received_metadata import (
    TopicUpdate,
    changes_of_brokers,
    changes_of_topics,
    received_brokers,
    received_topics,
    unknown_topics,
)
from kbroker.controller.image import BrokerRegistration, TopicImage
from kbroker.controller.metadata_loader import read_named_topics
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.trees import znodes
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID, RandomBytes
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ControlRequestHandler"]

_Read = TypeVar("_Read")


class ControlRequestHandler:
    def __init__(
        self,
        store: MetadataStore,
        random_bytes: RandomBytes,
        *,
        broker_epoch: Callable[[], int],
        on_metadata: Callable[[], None],
    ) -> None:
        """`on_metadata`: called after each UpdateMetadata request."""
        self._store = store
        self._random_bytes = random_bytes
        self._broker_epoch = broker_epoch
        self._on_metadata = on_metadata
        self.offline: Callable[[], Collection[tuple[str, int]]] = tuple
        """Returns the partitions whose replica on this broker is in a failed data directory."""
        self.delete_unassigned: Callable[[Sequence[tuple[str, int]]], None] = lambda partitions: None
        """Deletes logs of deleted topics that the image does not have, because they were deleted before the start."""
        self._origin = (-1, -1)
        """Epochs of the controller and of this broker at the last UpdateMetadata."""
        # Not the store's lock: a request that reads nothing from the tree must not wait for a slow tree.
        self._lock = trio.Lock()

    async def update_metadata(self, body: Any) -> None:
        async with self._lock:
            topics = received_topics(body)
            deleted: set[bytes] = set()
            origin = (body.controller_epoch, self._broker_epoch())
            if origin != self._origin:
                self._check_sender(body)
                names = {topic.name for topic in topics}
                deleted = await self._read_tree(body, lambda: self._find_deleted(names))
            await self._apply(body, topics, received_brokers(body), deleted)
            self._origin = origin
            self._on_metadata()

    async def leader_and_isr(self, body: Any) -> dict[tuple[str, int], ErrorCode]:
        """Returns an error code for each partition of the request."""
        async with self._lock:
            topics = received_topics(body)
            before = self._store.image
            await self._apply(body, topics)
            image = self._store.image
            offline = self.offline()
            codes: dict[tuple[str, int], ErrorCode] = {}
            for topic in topics:
                for index, received in topic.partitions.items():
                    known, old = image.topic(topic.name), before.partition(topic.name, index)
                    if known is None or index >= len(known.partitions):
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    elif topic.id not in (ZERO_UUID, known.id):
                        code = ErrorCode.INCONSISTENT_TOPIC_ID
                    elif old is not None and old.partition_epoch >= 0 and received.leader_epoch < old.leader_epoch:
                        code = ErrorCode.STALE_CONTROLLER_EPOCH
                    elif (topic.name, index) in offline:
                        code = ErrorCode.KAFKA_STORAGE_ERROR
                    else:
                        code = ErrorCode.NONE
                    codes[topic.name, index] = code
            return codes

    async def stop_replica(self, body: Any) -> list[tuple[str, int]]:
        """Returns the partitions of the request.

        Removes deleted topics. Replicas that move to another broker are handled by LeaderAndIsr.
        """
        async with self._lock:
            changes = self._check_sender(body)
            named = [
                (topic.topic_name, state.partition_index)
                for topic in body.topic_states
                for state in topic.partition_states
            ]
            deleted = {
                topic.topic_name
                for topic in body.topic_states
                for state in topic.partition_states
                if state.delete_partition and state.leader_epoch == LEADER_DURING_DELETE
            }
            topics = (self._store.image.topic(name) for name in sorted(deleted))
            self._store.commit([*changes, *(TopicRemoved(topic) for topic in topics if topic is not None)])
            self.delete_unassigned([key for key in named if key[0] in deleted])
            named += [(partition.topic_name, partition.partition_index) for partition in body.ungrouped_partitions]
            return named + [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]

    def _check_sender(self, body: Any) -> list[Change]:
        """Returns the change of the controller, if the sender is a new one.

        Raises STALE_CONTROLLER_EPOCH if the controller is an earlier one, STALE_BROKER_EPOCH if the request was for an
        earlier registration of this broker.
        """
        image = self._store.image
        if body.broker_epoch != -1 and body.broker_epoch < self._broker_epoch():
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH)
        if body.controller_epoch < image.controller_epoch:
            raise Refusal(ErrorCode.STALE_CONTROLLER_EPOCH)
        if (body.controller_id, body.controller_epoch) == (image.controller_id, image.controller_epoch):
            return []
        self._store.depose()
        return [ControllerChanged(body.controller_id, body.controller_epoch)]

    async def _read_tree(self, body: Any, read: Callable[[], Awaitable[_Read]]) -> _Read:
        """Reads from the tree until it answers, because the controller sends no request twice.

        Ends with a Refusal if the sender is not the controller any more, or this broker has registered again.
        """
        return await retry_until_connected(read, before_retry=lambda: self._check_sender(body))

    async def _find_deleted(self, received: set[str]) -> set[bytes]:
        """Returns ids of topics that are in the image, but neither in the request nor in the tree.

        They were deleted while this broker got no requests: between controllers, or while it had no session.
        """
        tree = self._store.tree
        kept = {name: topic.id for name, topic in self._store.image.topics.items() if name not in received}
        marked = set(await tree.children(znodes.DELETE_TOPICS))
        nodes = await tree.get_many([znodes.topic_path(name) for name in kept])
        existing = {
            name
            for (name, topic_id), node in zip(kept.items(), nodes, strict=True)
            if node is not None and _may_be(name, topic_id, node.data)
        }
        return {topic_id for name, topic_id in kept.items() if name in marked or name not in existing}

    async def _apply(
        self,
        body: Any,
        topics: Sequence[TopicUpdate],
        brokers: Sequence[BrokerRegistration] | None = None,
        deleted: Collection[bytes] = (),
    ) -> None:
        store = self._store
        self._check_sender(body)
        names = unknown_topics(store.image, topics)
        read: list[TopicImage] = []
        if names:
            read, _without_id = await self._read_tree(
                body, lambda: read_named_topics(store.tree, names, self._random_bytes, store.image.topics)
            )
        if read:
            await store.prepare(read)
        fresh = {topic.name: topic for topic in read}
        # The image may have changed during the reads: check the sender and compute the changes against it now.
        changes = self._check_sender(body)
        if brokers is not None:
            changes += changes_of_brokers(store.image, brokers)
        changes += [TopicRemoved(topic) for topic in map(store.image.topic_by_id, deleted) if topic is not None]
        store.commit([*changes, *changes_of_topics(store.image, topics, fresh)])


def _may_be(name: str, topic_id: bytes, data: bytes) -> bool:
    """Whether the node may be of the topic with this id. A damaged node counts: it must not delete the topic."""
    try:
        return znodes.decode_topic(name, data).topic_id in (None, topic_id)
    except znodes.BadNode:
        return True
