"""Moves partitions to other replicas: applies the rules of reassignment.py to the image and the tree.

The node of a topic holds the replicas, the node of a partition's state leader, epoch and ISR. One multi writes both, so
a controller that takes over finds either the old or the new state. Callers hold `MetadataStore.as_controller`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.clock import Clock
from kbroker.controller.image import Image, PartitionState
from kbroker.controller.leader_elector import LeaderElector
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.rules.reassignment import (
    finish_reassignment,
    is_reassigning,
    plan_reassignment,
    restart_reassignment,
)
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import SetData
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.time_slice import map_in_slices

__all__ = ["PartitionReassigner", "WantedReplicas"]

logger = logging.getLogger(__name__)

WantedReplicas = Mapping[tuple[str, int], Sequence[int] | None]
"""New replicas of partitions, by topic and partition; None to cancel a reassignment."""


class PartitionReassigner:
    def __init__(self, store: MetadataStore, elector: LeaderElector, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._elector = elector

    @property
    def _image(self) -> Image:
        return self._store.image

    async def alter(
        self, wanted: WantedReplicas, *, may_change_factor: bool = True
    ) -> dict[tuple[str, int], Refusal | None]:
        """Begins and cancels reassignments. The outcome of a partition is None if it was accepted."""
        outcomes: dict[tuple[str, int], Refusal | None] = {}
        changed: dict[str, dict[int, PartitionState]] = {}

        def plan(item: tuple[tuple[str, int], Sequence[int] | None]) -> None:
            (name, index), replicas = item
            planned = self._plan(name, index, replicas, may_change_factor=may_change_factor)
            outcomes[name, index] = planned if isinstance(planned, Refusal) else None
            if isinstance(planned, PartitionState) and planned is not self._image.partition(name, index):
                changed.setdefault(name, {})[index] = planned

        await map_in_slices(self._clock, plan, wanted.items())
        await self._write(changed)
        return outcomes

    def _plan(
        self, name: str, index: int, replicas: Sequence[int] | None, *, may_change_factor: bool
    ) -> PartitionState | Refusal:
        image = self._image
        if name not in image.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        partition = image.partition(name, index)
        if partition is None or partition.partition_epoch < 0:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
        return plan_reassignment(
            partition,
            replicas,
            image.brokers,
            controller_epoch=image.controller_epoch,
            may_change_factor=may_change_factor,
        )

    async def finish_due(self) -> None:
        """Finishes reassignments whose target replicas are all in sync."""
        image = self._image
        changed: dict[str, dict[int, PartitionState]] = {}
        for name, index, partition in self._moving():
            finished = finish_reassignment(partition, image.brokers, controller_epoch=image.controller_epoch)
            if finished is not None:
                changed.setdefault(name, {})[index] = finished
        await self._write(changed)

    async def resume(self) -> None:
        """Goes on with the reassignments of the previous controller."""
        await self.finish_due()
        changed: dict[str, dict[int, PartitionState]] = {}
        for name, index, partition in self._moving():
            state = restart_reassignment(partition, controller_epoch=self._image.controller_epoch)
            if state is not None:
                changed.setdefault(name, {})[index] = state
        await self._elector.change_states(changed)

    def _moving(self) -> list[tuple[str, int, PartitionState]]:
        return [
            (name, index, partition)
            for name, topic in self._image.topics.items()
            for index, partition in enumerate(topic.partitions)
            if is_reassigning(partition)
        ]

    async def _write(self, changed: Mapping[str, Mapping[int, PartitionState]]) -> None:
        before = self._image
        nodes = []
        for name, states in changed.items():
            topic = before.topics[name]
            partitions = [states.get(index, known) for index, known in enumerate(topic.partitions)]
            nodes.append(SetData(znodes.topic_path(name), znodes.encode_topic(topic.id, partitions)))
        await self._elector.change_states(changed, nodes)
        for name, states in changed.items():
            for index, state in states.items():
                _log_change(name, index, before.topics[name].partitions[index], state)


def _log_change(name: str, index: int, known: PartitionState, state: PartitionState) -> None:
    verb = "Reassigning" if is_reassigning(state) else "Reassigned"
    text = "%s %s-%d from replicas %s to %s, adding %s, removing %s"
    moved = map(list, (known.replicas, state.replicas, state.adding_replicas, state.removing_replicas))
    logger.info(text, verb, name, index, *moved)
