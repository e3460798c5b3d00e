"""Serves the requests that older tools write into the tree: moves of partitions and elections of preferred leaders.

`kafka-reassign-partitions --zookeeper` and CMAK write `/admin/reassign_partitions`, and wait until the controller has
deleted their partitions from it. `/admin/preferred_replica_election` is deleted when the leaders were elected.
A node that cannot be decoded is skipped, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.controller.changes import Change, PartitionsChanged
from kbroker.controller.cluster.event_queue import Event, EventQueue
from kbroker.controller.cluster.node_watches import NodeWatches
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image
from kbroker.controller.rules.reassignment import is_moving_to
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Delete, SetData, Tree
from kbroker.errors import Refusal

__all__ = ["AdminRequests"]

logger = logging.getLogger(__name__)

_Moves = dict[tuple[str, int], tuple[int, ...]]


class AdminRequests:
    """Callers of the coroutines hold `MetadataStore.as_controller`."""

    def __init__(self, controller: Controller, tree: Tree, watches: NodeWatches, events: EventQueue) -> None:
        self._controller = controller
        self._store = controller.store
        self._tree = tree
        self._watches = watches
        self._events = events
        self._begun: _Moves = {}
        """Moves of the node that were begun and have not ended."""
        self._store.add_listener(self._on_image)

    def forget(self) -> None:
        """Forgets the moves, because this broker is no longer the controller."""
        self._begun = {}

    def _on_image(self, _image: Image, changes: Sequence[Change]) -> None:
        if self._begun and any(
            (change.topic_name, index) in self._begun
            for change in changes
            if isinstance(change, PartitionsChanged)
            for index in change.partitions
        ):
            self._events.put(Event.ADMIN_REQUESTS)

    async def process(self) -> None:
        moves = await self._read(znodes.REASSIGN_PARTITIONS)
        elections = await self._read(znodes.PREFERRED_REPLICA_ELECTION)
        if moves is not None:
            await self._process_moves(moves)
        if elections is not None:
            await self._process_elections(elections)

    async def _read(self, path: str) -> bytes | None:
        await self._tree.exists(path, self._watches.watch(path, Event.ADMIN_REQUESTS))
        (node,) = await self._tree.get_many([path])
        self._store.check_active()
        return None if node is None else node.data

    async def _process_moves(self, data: bytes) -> None:
        try:
            requested = znodes.decode_reassignments(data)
        except znodes.BadNode as failure:
            logger.warning("Ignored %s: %s", znodes.REASSIGN_PARTITIONS, failure)
            return
        new = {key: replicas for key, replicas in requested.items() if self._begun.get(key) != replicas}
        outcomes = await self._controller.reassigner.alter(new)
        _log_refused("Reassignment", outcomes)
        # A move has ended if it was refused, if it is finished, or if another request has replaced it.
        self._begun = {key: replicas for key, replicas in requested.items() if self._is_moving(key, replicas)}
        if not self._begun:
            await self._store.write([Delete(znodes.REASSIGN_PARTITIONS)])
        elif self._begun != requested:
            left = znodes.encode_reassignments(self._begun)
            await self._store.write([SetData(znodes.REASSIGN_PARTITIONS, left)])

    def _is_moving(self, key: tuple[str, int], replicas: Sequence[int]) -> bool:
        partition = self._store.image.partition(*key)
        return partition is not None and is_moving_to(partition, replicas)

    async def _process_elections(self, data: bytes) -> None:
        try:
            wanted = znodes.decode_preferred_election(data)
        except znodes.BadNode as failure:
            logger.warning("Ignored %s: %s", znodes.PREFERRED_REPLICA_ELECTION, failure)
        else:
            outcomes = await self._controller.elector.elect(wanted, is_unclean=False)
            _log_refused("Preferred leader election", outcomes)
        await self._store.write([Delete(znodes.PREFERRED_REPLICA_ELECTION)])


def _log_refused(request: str, outcomes: Mapping[tuple[str, int], Refusal | None]) -> None:
    for (name, index), outcome in outcomes.items():
        if outcome is not None:
            logger.warning("%s of %s-%d through ZooKeeper failed: %s", request, name, index, outcome.message)
