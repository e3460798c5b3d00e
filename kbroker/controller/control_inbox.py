"""What the controller tells this broker: checked against the epochs, then taken into the image.

Never decides anything: a broker that is told of a newer controller than it knows follows that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import trio

from kbroker.controller import znodes
from kbroker.controller.changes import Change, ControllerChanged, TopicRemoved
from kbroker.controller.control_requests import LEADER_DURING_DELETE
from kbroker.controller.feed import read_named_topics
from kbroker.controller.image import Broker
from kbroker.controller.ledger import Ledger
from kbroker.controller.told_state import (
    ToldTopic,
    changes_of_brokers,
    changes_of_topics,
    told_brokers,
    told_topics,
    unknown_topics,
)
from kbroker.controller.tree import ConnectionLost, SessionLost
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID, RandomBytes
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ControlInbox"]


class ControlInbox:
    def __init__(
        self, ledger: Ledger, random_bytes: RandomBytes, *, broker_epoch: Callable[[], int], on_told: Callable[[], None]
    ) -> None:
        """`on_told`: called after each UpdateMetadata."""
        self._ledger = ledger
        self._random_bytes = random_bytes
        self._broker_epoch = broker_epoch
        self._on_told = on_told
        self._origin = (-1, -1)
        """The epochs of the controller and of this broker under which it was told the last time."""
        # Not the ledger's: what needs nothing from the tree must not wait for it.
        self._lock = trio.Lock()

    async def update_metadata(self, body: Any) -> None:
        async with self._lock:
            topics = told_topics(body)
            gone: set[bytes] = set()
            origin = (body.controller_epoch, self._broker_epoch())
            if origin != self._origin:
                self._sender(body)
                gone = await self._find_gone({each.name for each in topics})
            await self._take(body, topics, told_brokers(body), gone)
            self._origin = origin
            self._on_told()

    async def leader_and_isr(self, body: Any) -> dict[tuple[str, int], ErrorCode]:
        """A code for each partition of the request."""
        async with self._lock:
            topics = told_topics(body)
            before = self._ledger.image
            await self._take(body, topics)
            image = self._ledger.image
            codes: dict[tuple[str, int], ErrorCode] = {}
            for topic in topics:
                for index, told in topic.partitions.items():
                    known, old = image.topic(topic.name), before.partition(topic.name, index)
                    if known is None or index >= len(known.partitions):
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    elif topic.id not in (ZERO_UUID, known.id):
                        code = ErrorCode.INCONSISTENT_TOPIC_ID
                    elif old is not None and old.partition_epoch >= 0 and told.leader_epoch < old.leader_epoch:
                        code = ErrorCode.STALE_CONTROLLER_EPOCH
                    else:
                        code = ErrorCode.NONE
                    codes[topic.name, index] = code
            return codes

    async def stop_replica(self, body: Any) -> list[tuple[str, int]]:
        """The partitions that were named. Only whole topics go: replicas that move away are told by their states."""
        async with self._lock:
            changes = self._sender(body)
            named = [
                (topic.topic_name, each.partition_index)
                for topic in body.topic_states
                for each in topic.partition_states
            ]
            doomed = {
                topic.topic_name
                for topic in body.topic_states
                for each in topic.partition_states
                if each.delete_partition and each.leader_epoch == LEADER_DURING_DELETE
            }
            topics = (self._ledger.image.topic(name) for name in sorted(doomed))
            self._ledger.commit([*changes, *(TopicRemoved(topic) for topic in topics if topic is not None)])
            named += [(each.topic_name, each.partition_index) for each in body.ungrouped_partitions]
            return named + [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]

    def _sender(self, body: Any) -> list[Change]:
        """Refuses a controller of the past, and what was meant for this broker before it registered anew."""
        image = self._ledger.image
        if body.broker_epoch != -1 and body.broker_epoch < self._broker_epoch():
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH)
        if body.controller_epoch < image.controller_epoch:
            raise Refusal(ErrorCode.STALE_CONTROLLER_EPOCH)
        if (body.controller_id, body.controller_epoch) == (image.controller_id, image.controller_epoch):
            return []
        self._ledger.depose()
        return [ControllerChanged(body.controller_id, body.controller_epoch)]

    async def _find_gone(self, told: set[str]) -> set[bytes]:
        """Topics that were deleted while nobody could tell us: between controllers, or while we had no session."""
        tree = self._ledger.tree
        kept = {name: topic.id for name, topic in self._ledger.image.topics.items() if name not in told}
        try:
            marked = set(await tree.children(znodes.DELETE_TOPICS))
            nodes = await tree.get_many([znodes.topic_path(name) for name in kept])
        except (ConnectionLost, SessionLost) as failure:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        there = {
            name
            for (name, topic_id), node in zip(kept.items(), nodes, strict=True)
            if node is not None and znodes.decode_topic(name, node.data).topic_id in (None, topic_id)
        }
        return {topic_id for name, topic_id in kept.items() if name in marked or name not in there}

    async def _take(
        self,
        body: Any,
        topics: Sequence[ToldTopic],
        brokers: Sequence[Broker] | None = None,
        gone: Collection[bytes] = (),
    ) -> None:
        ledger = self._ledger
        self._sender(body)
        names = unknown_topics(ledger.image, topics)
        try:
            read, _without_id = await read_named_topics(ledger.tree, names, self._random_bytes) if names else ([], [])
        except (ConnectionLost, SessionLost) as failure:
            # When we are back the controller tells everything anew, or another one does.
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure
        if read:
            await ledger.prepare(read)
        fresh = {topic.name: topic for topic in read}
        # The image may have changed while we waited: only what stands now counts.
        changes = self._sender(body)
        if brokers is not None:
            changes += changes_of_brokers(ledger.image, brokers)
        changes += [TopicRemoved(each) for each in map(ledger.image.topic_by_id, gone) if each is not None]
        ledger.commit([*changes, *changes_of_topics(ledger.image, topics, fresh)])
