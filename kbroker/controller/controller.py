"""The controller: the one broker that writes the cluster's metadata, and what it is asked for.

Topics, partitions, configs, leaders. What a write is, and when the image changes, is the ledger's; where there are
several brokers, `ClusterMember` decides which of them is the controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kbroker.clock import Clock
from kbroker.config import TOPIC_CONFIGS, BrokerConfig, Endpoint
from kbroker.controller import znodes
from kbroker.controller.changes import (
    BrokerAdded,
    Change,
    ClusterIdSet,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicRemoved,
    apply,
)
from kbroker.controller.claims import claim_broker_id, claim_controller
from kbroker.controller.config_writer import ConfigsUpdate, ConfigWriter, warn_of_inactive
from kbroker.controller.election import initial_state
from kbroker.controller.feed import ensure_layout, read_cluster_id, read_entity_configs, read_topics
from kbroker.controller.image import Broker, Image, Partition, Topic, unled
from kbroker.controller.isr_rules import IsrProposal
from kbroker.controller.leadership import Leadership
from kbroker.controller.ledger import ImageListener, Ledger, TopicPreparer
from kbroker.controller.topic_rules import NewTopic, existing_topic_refusal, plan_partitions, plan_topic
from kbroker.controller.tree import BadVersion, Create, Delete, NodeExists, Operation, SetData, Tree
from kbroker.controller.writes import in_groups, partition_nodes, topic_nodes
from kbroker.controller.znodes import ProducerIdBlock
from kbroker.errors import Refusal, UserError
from kbroker.names import RandomBytes, collision_key
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ConfigsUpdate", "Controller", "ImageListener", "generate_broker_id"]


PRODUCER_ID_BLOCK_SIZE: Final = 1000


class Controller:
    """Call `load`, then `register`; from then on `image` is the truth and the other calls change it.

    `is_shared`: other brokers write the tree too. Then `ClusterMember` takes the place of `register`.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        random_bytes: RandomBytes,
        is_shared: bool = False,
    ) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._random_bytes = random_bytes
        self._is_shared = is_shared
        self.ledger = Ledger(tree, broker_id=broker_id, config=config)
        self.leadership = Leadership(self.ledger, config)
        self.configs = ConfigWriter(self.ledger, is_shared=is_shared)
        self.spread: Callable[[], Awaitable[None]] = _told_already
        """Awaited when there are new partitions: until other brokers, to which clients go next, know them too."""
        self._pending_deletions: list[str] = []
        self._topics_without_id: list[str] = []

    @property
    def image(self) -> Image:
        """The newest one; each change makes another object."""
        return self.ledger.image

    def add_listener(self, listener: ImageListener) -> None:
        """Called at once after each change, with the image that it made; it must not raise."""
        self.ledger.add_listener(listener)

    def add_preparer(self, preparer: TopicPreparer) -> None:
        """Awaited with topics that are about to be added: for work that listeners, which cannot wait, should find done.
        It must not raise, and may have run for topics that then do not come."""
        self.ledger.add_preparer(preparer)

    async def start(self, endpoints: Sequence[Endpoint]) -> None:
        await self.load()
        await self.register(endpoints)

    async def load(self) -> None:
        """Reads what the tree holds; listeners get every topic as added, in one call."""
        async with self.ledger.alone():
            await ensure_layout(self._tree)
            cluster_id = await read_cluster_id(self._tree, self._random_bytes)
            # Before the topics: what they fall back to.
            self.ledger.commit(await read_entity_configs(self._tree))
            loaded = await read_topics(self._tree, self._random_bytes)
            self._pending_deletions = loaded.pending_deletions
            self._topics_without_id = loaded.topics_without_id
            changes = [_unled(each) for each in loaded.changes] if self._is_shared else loaded.changes
            self.ledger.commit([ClusterIdSet(cluster_id), *changes])

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Enters the broker, becomes the controller, and ends what an earlier controller began."""
        async with self.ledger.alone():
            broker = await self._register_broker(endpoints)
            epoch = await self._become_controller()
            self.ledger.commit([BrokerAdded(broker), ControllerChanged(self._broker_id, epoch)])
            await self.tidy(self._pending_deletions, self._topics_without_id)
            self._pending_deletions = []
            await self._forget_config_changes()
            await self.leadership.elect_leaders()

    async def tidy(self, pending_deletions: Sequence[str], topics_without_id: Sequence[str]) -> None:
        """Ends what an earlier controller, or a Kafka of old, left undone."""
        await self.finish_deletions(pending_deletions)
        await self._write_topic_ids(topics_without_id)

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        (outcome,) = await self.create_topics([new], validate_only=validate_only)
        return _or_raise(outcome)

    async def create_topics(self, wishes: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | Refusal]:
        """An outcome for each, in order. Topics that fit into one multi are created together."""
        async with self.ledger.turn():
            outcomes = self._judge(wishes)
            if not validate_only:
                planned = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
                existing = await self._create(planned)
                outcomes = [
                    existing_topic_refusal(each.name, each.name)
                    if isinstance(each, Topic) and each in existing
                    else each
                    for each in outcomes
                ]
                for each in planned:
                    warn_of_inactive(f"topic {each.name}", each.configs, TOPIC_CONFIGS)
        if not validate_only:
            await self.spread()
        return outcomes

    async def delete_topic(self, *, name: str | None = None, topic_id: bytes | None = None) -> Topic:
        (outcome,) = await self.delete_topics([topic_id if name is None else name])
        return _or_raise(outcome)

    async def delete_topics(self, wanted: Sequence[str | bytes | None]) -> list[Topic | Refusal]:
        """Topics by name (str) or id (bytes); an outcome for each, in order."""
        async with self.ledger.turn():
            outcomes: list[Topic | Refusal] = []
            topics: dict[str, Topic] = {}
            for each in wanted:
                outcome = self._deletable(each)
                outcomes.append(outcome)
                if isinstance(outcome, Topic):
                    topics[outcome.name] = outcome
            # The intent first: whatever happens from here on, the topics are gone and the rest is tidied at a start.
            await self.ledger.write([Create(znodes.delete_topic_path(name)) for name in topics])
            self.ledger.commit([TopicRemoved(topic) for topic in topics.values()])
            await self.finish_deletions(list(topics))
            return outcomes

    async def create_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """The topic with that many partitions in all."""
        async with self.ledger.turn():
            topic = self._known(name)
            planned = plan_partitions(topic, total, assignment, self.image)
            if isinstance(planned, Refusal):
                raise planned
            image = self.image
            first = len(topic.partitions)
            added = {
                first + place: initial_state(replicas, image.brokers, image.controller_epoch)
                for place, replicas in enumerate(planned)
            }
            change = PartitionsChanged(name, added)
            grown = apply(image, [change]).topics[name]
            if validate_only:
                return grown
            data = znodes.encode_topic(topic.id, grown.partitions)
            await self.ledger.write([SetData(znodes.topic_path(name), data), *partition_nodes(name, added)])
            self.ledger.commit([change])
        await self.spread()
        return grown

    async def alter_topic_configs(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Puts these overrides in the place of all that the topic has."""
        await self.update_topic_configs(name, lambda _: configs, validate_only=validate_only)

    async def update_topic_configs(self, name: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Overrides made from those that the topic has now. A topic that is not there is told of last, as in Kafka."""
        async with self.ledger.operation():
            await self.configs.update_topic(name, update, validate_only=validate_only)

    async def update_entity_configs(self, entity: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Configs or quotas of what is no topic, made from those that it has now; see `znodes.entity_path`.

        Those of this broker act from the moment that they are written.
        """
        async with self.ledger.operation():
            await self.configs.update_entity(entity, update, validate_only=validate_only)

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """A new leader epoch under the same leader: for a log that recovery shortened, before it serves again.

        Followers and consumers that saw the lost records find by it where their history and the leader's part.
        """
        async with self.ledger.turn():
            await self.leadership.bump_leader_epochs(partitions)

    async def elect(
        self, wanted: Sequence[tuple[str, int]] | None, *, is_unclean: bool = False
    ) -> dict[tuple[str, int], Refusal | None]:
        """See `Leadership.elect`."""
        async with self.ledger.turn():
            return await self.leadership.elect(wanted, is_unclean=is_unclean)

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[Partition | Refusal]:
        """See `Leadership.alter_partitions`."""
        async with self.ledger.turn():
            return await self.leadership.alter_partitions(broker_id, broker_epoch, proposals)

    async def shut_down(self, broker_id: int, broker_epoch: int = -1) -> list[tuple[str, int]]:
        """See `Leadership.shut_down`."""
        async with self.ledger.turn():
            return await self.leadership.shut_down(broker_id, broker_epoch)

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """A block of ids that nobody was ever given before. Any broker may take one, so the epoch is not checked."""
        while True:
            data, stat = await self._tree.get(znodes.PRODUCER_ID_BLOCK)
            latest = znodes.decode_producer_id_block(data)
            first = 0 if latest is None else latest.last + 1
            block = ProducerIdBlock(first, first + PRODUCER_ID_BLOCK_SIZE - 1)
            try:
                await self._tree.set(
                    znodes.PRODUCER_ID_BLOCK,
                    znodes.encode_producer_id_block(block, broker_id=self._broker_id),
                    stat.version,
                )
            except BadVersion:
                continue  # another broker took this one
            return block

    async def _register_broker(self, endpoints: Sequence[Endpoint]) -> Broker:
        broker = Broker(self._broker_id, 0, tuple(endpoints), self._config.broker_rack)
        return await claim_broker_id(self._tree, broker, timestamp_ms=self._clock.now_ms())

    async def _become_controller(self) -> int:
        seat = await claim_controller(self._tree, self._broker_id, timestamp_ms=self._clock.now_ms())
        if seat is None:
            raise UserError("another broker is the controller of this cluster")
        self.ledger.activate(seat.epoch_version)
        return seat.epoch

    async def _create(self, topics: Sequence[Topic]) -> list[Topic]:
        """Writes the topics; answers with those that turned out to be in the tree already."""
        existing: list[Topic] = []
        for group in in_groups(topics):
            try:
                await self.ledger.write([operation for topic in group for operation in topic_nodes(topic)])
            except NodeExists:
                existing += await self._create_singly(group)
                continue
            await self.ledger.prepare(group)
            self.ledger.check_active()
            self.ledger.commit([TopicAdded(topic) for topic in group])
        return existing

    async def _create_singly(self, topics: Sequence[Topic]) -> list[Topic]:
        """What a multi refused because one of its nodes is there; configs that outlived their topic are in no way."""
        existing: list[Topic] = []
        for topic in topics:
            config_path = znodes.topic_config_path(topic.name)
            leftover: list[Operation] = [Delete(config_path)] if await self._tree.exists(config_path) else []
            try:
                await self.ledger.write([*leftover, *topic_nodes(topic)])
            except NodeExists:
                existing.append(topic)
                continue
            self.ledger.commit([TopicAdded(topic)])
        return existing

    def _judge(self, wishes: Sequence[NewTopic]) -> list[Topic | Refusal]:
        """Each wish as if those before it had been granted already."""
        outcomes: list[Topic | Refusal] = []
        granted: dict[str, str] = {}
        for new in wishes:
            outcome = plan_topic(new, self.image, self._config, self._random_bytes)
            earlier = granted.get(collision_key(new.name))
            if isinstance(outcome, Topic) and earlier is not None:
                outcome = existing_topic_refusal(new.name, earlier)
            elif isinstance(outcome, Topic):
                granted[collision_key(new.name)] = new.name
            outcomes.append(outcome)
        return outcomes

    def _deletable(self, wanted: str | bytes | None) -> Topic | Refusal:
        if isinstance(wanted, str):
            topic, unknown = self.image.topic(wanted), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic, unknown = self.image.topic_by_id(wanted or b""), ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            return Refusal(unknown, "This server does not host this topic.")
        if not self._config.delete_topic_enable:
            return Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled: delete.topic.enable=false.")
        return topic

    async def finish_deletions(self, names: Sequence[str]) -> None:
        """Takes away what the tree still holds of topics that are marked as deleted, and the marks last."""
        operations: list[Operation] = []
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
        await self.ledger.write(operations)

    async def _write_topic_ids(self, names: Sequence[str]) -> None:
        """Topics of a Kafka before 2.8 have no ids in the tree; the ones that the load gave them are to stay."""
        topics = [self.image.topics[name] for name in names]
        await self.ledger.write(
            [SetData(znodes.topic_path(each.name), znodes.encode_topic(each.id, each.partitions)) for each in topics]
        )

    async def _forget_config_changes(self) -> None:
        """In a cluster of one nobody is left to be told of what changed before the start."""
        names = await self._tree.children(znodes.CONFIG_CHANGES)
        await self.ledger.write([Delete(f"{znodes.CONFIG_CHANGES}/{name}") for name in names])

    def _known(self, name: str) -> Topic:
        topic = self.image.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic


async def _told_already() -> None:
    """A cluster of one."""


def _or_raise(outcome: Topic | Refusal) -> Topic:
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def _unled(change: Change) -> Change:
    """A topic as the tree has it when a broker joins: it leads nothing, whatever it led before, until it is told to."""
    if not isinstance(change, TopicAdded):
        return change
    topic = change.topic
    return TopicAdded(replace(topic, partitions=tuple(unled(each) for each in topic.partitions)))


async def generate_broker_id(tree: Tree, *, reserved_max_id: int) -> int:
    """An id that no broker has: the version of a node that every caller writes to, above the ids that people choose."""
    await ensure_layout(tree)
    stat = await tree.set(znodes.BROKER_SEQUENCE, b"")
    return reserved_max_id + stat.version
