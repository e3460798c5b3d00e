"""Creates, grows and deletes topics in the tree and in the image. Callers hold `MetadataStore.as_controller`.

A deletion that was begun is always finished, by the next controller if need be: it is marked in the tree first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import TOPIC_CONFIGS
from kbroker.controller.changes import PartitionsChanged, TopicAdded, TopicRemoved, apply
from kbroker.controller.config_writer import warn_of_inactive
from kbroker.controller.image import Image, TopicImage
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.rules.election import initial_state
from kbroker.controller.rules.topic_rules import NewTopic, existing_topic_refusal, plan_partitions, plan_topic
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Create, Delete, NodeExists, SetData, TreeOperation
from kbroker.controller.trees.writes import in_groups, partition_nodes, topic_nodes
from kbroker.errors import Refusal, StorageFailure
from kbroker.names import RandomBytes, collision_key
from kbroker.protocol.error_codes import ErrorCode
from kbroker.time_slice import map_in_slices

__all__ = ["TopicWriter"]

logger = logging.getLogger(__name__)


class TopicWriter:
    def __init__(self, store: MetadataStore, config: BrokerConfig, random_bytes: RandomBytes, clock: Clock) -> None:
        self._store = store
        self._tree = store.tree
        self._config = config
        self._random_bytes = random_bytes
        self._clock = clock
        self._unfinished: list[str] = []  # topics whose nodes could not be deleted yet

    @property
    def _image(self) -> Image:
        return self._store.image

    # Creation

    async def create(self, requests: Sequence[NewTopic], *, validate_only: bool) -> list[TopicImage | Refusal]:
        if self._unfinished and not validate_only:
            await self._finish_earlier_deletions()
        outcomes = await self._validate(requests)
        if validate_only:
            return outcomes
        planned = [outcome for outcome in outcomes if isinstance(outcome, TopicImage)]
        existing = await self._write_topics(planned)
        for topic in planned:
            warn_of_inactive(f"topic {topic.name}", topic.configs, TOPIC_CONFIGS)
        return [
            existing_topic_refusal(outcome.name, existing=outcome.name)
            if isinstance(outcome, TopicImage) and outcome in existing
            else outcome
            for outcome in outcomes
        ]

    async def _validate(self, requests: Sequence[NewTopic]) -> list[TopicImage | Refusal]:
        """Plans each topic, as if the topics before it had been created already."""
        planned: dict[str, str] = {}

        def plan(request: NewTopic) -> TopicImage | Refusal:
            outcome = plan_topic(request, self._image, self._config, self._random_bytes)
            if isinstance(outcome, Refusal):
                return outcome
            earlier = planned.get(collision_key(request.name))
            if earlier is not None:
                return existing_topic_refusal(request.name, existing=earlier)
            planned[collision_key(request.name)] = request.name
            return outcome

        return await map_in_slices(self._clock, plan, requests)

    async def _write_topics(self, topics: Sequence[TopicImage]) -> list[TopicImage]:
        """Returns the topics that are in the tree already."""
        existing: list[TopicImage] = []
        for group in in_groups(topics):
            try:
                await self._store.write([operation for topic in group for operation in topic_nodes(topic)])
            except NodeExists:
                existing += await self._write_one_by_one(group)
                continue
            await self._store.prepare(group)
            self._store.check_active()
            self._store.commit([TopicAdded(topic) for topic in group])
        return existing

    async def _write_one_by_one(self, topics: Sequence[TopicImage]) -> list[TopicImage]:
        """Like `_write_topics`, after one node of the group turned out to exist.

        A config node without a topic is no obstacle: it is replaced.
        """
        existing: list[TopicImage] = []
        for topic in topics:
            config_path = znodes.topic_config_path(topic.name)
            leftover: list[TreeOperation] = [Delete(config_path)] if await self._tree.exists(config_path) else []
            try:
                await self._store.write([*leftover, *topic_nodes(topic)])
            except NodeExists:
                existing.append(topic)
                continue
            self._store.commit([TopicAdded(topic)])
        return existing

    async def create_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> TopicImage:
        image = self._image
        topic = image.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        planned = plan_partitions(topic, total, assignment, image)
        if isinstance(planned, Refusal):
            raise planned
        first = len(topic.partitions)
        added = {
            first + place: initial_state(replicas, image.brokers, image.controller_epoch)
            for place, replicas in enumerate(planned)
        }
        change = PartitionsChanged(name, added)
        grown = apply(image, [change]).topics[name]
        if not validate_only:
            data = znodes.encode_topic(topic.id, grown.partitions)
            await self._store.write([SetData(znodes.topic_path(name), data), *partition_nodes(name, added)])
            await self._store.prepare([grown])
            self._store.check_active()
            self._store.commit([change])
        return grown

    # Deletion

    async def delete(self, wanted: Sequence[str | bytes | None]) -> list[TopicImage | Refusal]:
        outcomes = [self._deletable(name_or_id) for name_or_id in wanted]
        topics = {outcome.name: outcome for outcome in outcomes if isinstance(outcome, TopicImage)}
        # The marks first: if this broker dies from here on, the next controller finishes the deletion.
        await self._store.write([Create(znodes.delete_topic_path(name)) for name in topics])
        self._store.commit([TopicRemoved(topic) for topic in topics.values()])
        self._unfinished += topics
        try:
            await self._finish_earlier_deletions()
        except StorageFailure as failure:
            # The topics are deleted: only nodes are left, for the next creation, deletion or start to delete.
            logger.error("Could not remove the metadata of deleted topics yet: %s", failure)
        return outcomes

    async def _finish_earlier_deletions(self) -> None:
        await self.finish_deletions(self._unfinished)
        self._unfinished.clear()

    def _deletable(self, wanted: str | bytes | None) -> TopicImage | Refusal:
        if isinstance(wanted, str):
            topic, unknown = self._image.topic(wanted), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic, unknown = self._image.topic_by_id(wanted or b""), ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            return Refusal(unknown, "This server does not host this topic.")
        if not self._config.delete_topic_enable:
            return Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        return topic

    async def finish_deletions(self, names: Sequence[str]) -> None:
        """Deletes the nodes of topics that are marked for deletion.

        The marks are deleted last: until then, a crash leaves a mark from which the next controller goes on. If topics
        cannot be deleted (delete.topic.enable), only the marks are.
        """
        operations: list[TreeOperation] = []
        if names and not self._config.delete_topic_enable:
            logger.info("Removing %s since delete topic is disabled", ",".join(names))
            await self._store.write([Delete(znodes.delete_topic_path(name)) for name in names])
            return
        for name in names:
            parent = znodes.partitions_path(name)
            partitions = await self._tree.children(parent) if await self._tree.exists(parent) else []
            paths = [
                *(f"{parent}/{partition}/state" for partition in partitions),
                *(f"{parent}/{partition}" for partition in partitions),
                parent,
                znodes.topic_path(name),
                znodes.topic_config_path(name),
                znodes.delete_topic_path(name),
            ]
            nodes = await self._tree.get_many(paths)
            operations += [Delete(path) for path, node in zip(paths, nodes, strict=True) if node is not None]
        await self._store.write(operations)

    async def write_topic_ids(self, names: Sequence[str]) -> None:
        """Writes the ids that loading gave to topics of a Kafka before 2.8, which have none in the tree."""
        topics = [self._image.topics[name] for name in names]
        await self._store.write(
            [
                SetData(znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.partitions))
                for topic in topics
            ]
        )
