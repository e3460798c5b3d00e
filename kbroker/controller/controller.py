"""The controller: the one broker that writes the cluster's metadata, here of a cluster of one.

Every write is a multi that also checks the controller epoch's node, so that a controller which lost its place cannot
write. One operation at a time; the image changes, and listeners run, only after the tree has taken the write.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from kbroker.clock import Clock
from kbroker.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigKey,
    Endpoint,
    topic_config,
    validate_topic_configs,
)
from kbroker.controller import znodes
from kbroker.controller.changes import (
    BrokerAdded,
    Change,
    ClusterIdSet,
    ControllerChanged,
    EntityConfigsChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
    apply,
)
from kbroker.controller.election import elect, initial_state
from kbroker.controller.feed import ensure_layout, read_cluster_id, read_entity_configs, read_topics
from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.controller.topic_rules import NewTopic, existing_topic_refusal, plan_partitions, plan_topic
from kbroker.controller.tree import (
    ANY_VERSION,
    MAX_NODE_SIZE,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    NodeExists,
    Operation,
    SessionLost,
    SetData,
    Tree,
    parent_of,
    size_of,
)
from kbroker.controller.znodes import ProducerIdBlock
from kbroker.errors import Refusal, UserError
from kbroker.group_config import GROUP_CONFIGS
from kbroker.names import RandomBytes, collision_key
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ConfigsUpdate", "Controller", "ImageListener", "generate_broker_id"]

logger = logging.getLogger(__name__)

ImageListener = Callable[[Image, Sequence[Change]], None]
TopicPreparer = Callable[[Sequence[Topic]], Awaitable[None]]
ConfigsUpdate = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the configs as they are to the configs as they shall be; raises a Refusal where they must not."""

PRODUCER_ID_BLOCK_SIZE: Final = 1000

_ALL_BROKERS: Final = znodes.DEFAULT_BROKERS

# Clients are never asked for their metrics. Quotas are checked by whoever sets them, and all of them act.
_TABLES: Final[Mapping[str, Mapping[str, ConfigKey[Any]]]] = {
    "brokers": BROKER_CONFIGS,
    "groups": GROUP_CONFIGS,
    "client-metrics": {},
}

# A multi travels as one packet; the check that goes along needs its share.
_MULTI_BYTES: Final = MAX_NODE_SIZE - 1000


class Controller:
    """Call `load`, then `register`; from then on `image` is the truth and the other calls change it."""

    def __init__(
        self, tree: Tree, *, broker_id: int, config: BrokerConfig, clock: Clock, random_bytes: RandomBytes
    ) -> None:
        self._tree = tree
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._random_bytes = random_bytes
        self._image = Image()
        self._listeners: list[ImageListener] = []
        self._preparers: list[TopicPreparer] = []
        self._lock = trio.Lock()
        self._epoch_version = ANY_VERSION
        self._pending_deletions: list[str] = []
        self._topics_without_id: list[str] = []

    @property
    def image(self) -> Image:
        """The newest one; each change makes another object."""
        return self._image

    def add_listener(self, listener: ImageListener) -> None:
        """Called at once after each change, with the image that it made; it must not raise."""
        self._listeners.append(listener)

    def add_preparer(self, preparer: TopicPreparer) -> None:
        """Awaited with topics that are about to be added: for work that listeners, which cannot wait, should find done.
        It must not raise, and may have run for topics that then do not come."""
        self._preparers.append(preparer)

    async def start(self, endpoints: Sequence[Endpoint]) -> None:
        await self.load()
        await self.register(endpoints)

    async def load(self) -> None:
        """Reads what the tree holds; listeners get every topic as added, in one call."""
        async with self._lock:
            await ensure_layout(self._tree)
            cluster_id = await read_cluster_id(self._tree, self._random_bytes)
            # Before the topics: what they fall back to.
            self._commit(await read_entity_configs(self._tree))
            loaded = await read_topics(self._tree, self._random_bytes)
            self._pending_deletions = loaded.pending_deletions
            self._topics_without_id = loaded.topics_without_id
            self._commit([ClusterIdSet(cluster_id), *loaded.changes])

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Enters the broker, becomes the controller, and ends what an earlier controller began."""
        async with self._lock:
            broker = await self._register_broker(endpoints)
            epoch = await self._become_controller()
            self._commit([BrokerAdded(broker), ControllerChanged(self._broker_id, epoch)])
            await self._finish_deletions(self._pending_deletions)
            self._pending_deletions = []
            await self._write_topic_ids(self._topics_without_id)
            await self._forget_config_changes()
            await self._elect_leaders()

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        (outcome,) = await self.create_topics([new], validate_only=validate_only)
        return _or_raise(outcome)

    async def create_topics(self, wishes: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | Refusal]:
        """An outcome for each, in order. Topics that fit into one multi are created together."""
        async with self._turn():
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
                    _warn_of_inactive(f"topic {each.name}", each.configs, TOPIC_CONFIGS)
            return outcomes

    async def delete_topic(self, *, name: str | None = None, topic_id: bytes | None = None) -> Topic:
        (outcome,) = await self.delete_topics([topic_id if name is None else name])
        return _or_raise(outcome)

    async def delete_topics(self, wanted: Sequence[str | bytes | None]) -> list[Topic | Refusal]:
        """Topics by name (str) or id (bytes); an outcome for each, in order."""
        async with self._turn():
            outcomes: list[Topic | Refusal] = []
            topics: dict[str, Topic] = {}
            for each in wanted:
                outcome = self._deletable(each)
                outcomes.append(outcome)
                if isinstance(outcome, Topic):
                    topics[outcome.name] = outcome
            # The intent first: whatever happens from here on, the topics are gone and the rest is tidied at a start.
            await self._write([Create(znodes.delete_topic_path(name)) for name in topics])
            self._commit([TopicRemoved(topic) for topic in topics.values()])
            await self._finish_deletions(list(topics))
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
        async with self._turn():
            topic = self._known(name)
            planned = plan_partitions(topic, total, assignment, self._image)
            if isinstance(planned, Refusal):
                raise planned
            image = self._image
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
            await self._write([SetData(znodes.topic_path(name), data), *_partition_nodes(name, added)])
            self._commit([change])
            return grown

    async def alter_topic_configs(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Puts these overrides in the place of all that the topic has."""
        await self.update_topic_configs(name, lambda _: configs, validate_only=validate_only)

    async def update_topic_configs(self, name: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Overrides made from those that the topic has now. A topic that is not there is told of last, as in Kafka."""
        async with self._turn():
            topic = self._image.topic(name)
            before = topic.configs if topic is not None else {}
            configs = dict(update(before))
            problem = validate_topic_configs(configs)
            if problem is not None:
                raise Refusal(ErrorCode.INVALID_CONFIG, problem)
            self._known(name)
            if validate_only or configs == before:
                return
            path = znodes.topic_config_path(name)
            data = znodes.encode_configs(configs)
            # A tree that somebody else wrote may lack the node: no configs, no node.
            write: Operation = SetData(path, data) if await self._tree.exists(path) else Create(path, data)
            await self._write([write, _announcement(f"topics/{name}")])
            self._commit([TopicConfigsChanged(name, configs)])
            _warn_of_inactive(f"topic {name}", _changed(before, configs), TOPIC_CONFIGS)

    async def update_entity_configs(self, entity: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Configs or quotas of what is no topic, made from those that it has now; see `znodes.entity_path`.

        Those of this broker act from the moment that they are written.
        """
        async with self._turn():
            before = self._image.configs_of(entity)
            configs = dict(update(before))
            if validate_only or configs == before:
                return
            await self._write([*await self._entity_nodes(entity, configs), _announcement(entity)])
            self._commit([EntityConfigsChanged(entity, configs)])
            table = _TABLES.get(entity.partition("/")[0])
            if table is not None:
                _warn_of_inactive(entity, _changed(before, configs), table)

    async def _entity_nodes(self, entity: str, configs: Mapping[str, str]) -> list[Operation]:
        """A node without configs goes, unless others hang from it."""
        path = znodes.entity_config_path(entity)
        data = znodes.encode_configs(configs)
        if await self._tree.exists(path):
            is_needed = configs or await self._tree.children(path)
            return [SetData(path, data) if is_needed else Delete(path)]
        missing: list[Operation] = []
        parent = parent_of(path)
        while not await self._tree.exists(parent):
            missing.insert(0, Create(parent))
            parent = parent_of(parent)
        return [*missing, Create(path, data)]

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """A new leader epoch under the same leader: for a log that recovery shortened, before it serves again.

        Followers and consumers that saw the lost records find by it where their history and the leader's part.
        """
        async with self._turn():
            changed: dict[str, dict[int, Partition]] = {}
            for name, index in partitions:
                partition = self._image.partition(name, index)
                if partition is None:
                    continue  # deleted while this waited for its turn
                changed.setdefault(name, {})[index] = partition._replace(
                    leader_epoch=partition.leader_epoch + 1,
                    partition_epoch=partition.partition_epoch + 1,
                    controller_epoch=self._image.controller_epoch,
                )
            await self._change_states(changed)

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

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One operation at a time, and to its end: one that stopped halfway would leave tree and image apart."""
        async with self._lock:
            with trio.CancelScope(shield=True):
                yield

    def _commit(self, changes: Sequence[Change]) -> None:
        if changes:
            self._image = apply(self._image, changes)
            changes = [*changes, *self._take_broker_configs(changes)]
            for listener in self._listeners:
                listener(self._image, changes)

    def _take_broker_configs(self, changes: Sequence[Change]) -> list[Change]:
        """Puts this broker's dynamic configs into effect; topics that fall back to them are changed along."""
        own = f"brokers/{self._broker_id}"
        if not any(isinstance(each, EntityConfigsChanged) and each.entity in (own, _ALL_BROKERS) for each in changes):
            return []
        before = self._config.topic_defaults
        self._config.set_dynamic(self._image.configs_of(own), self._image.configs_of(_ALL_BROKERS))
        if vars(before) == vars(self._config.topic_defaults):
            return []
        return [TopicConfigsChanged(topic.name, topic.configs) for topic in self._image.topics.values()]

    async def _write(self, operations: Sequence[Operation]) -> None:
        """All of them in order, in as few multis as they fit into; each multi is all or nothing."""
        for part in _parts(operations):
            try:
                await self._tree.multi([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *part])
            except BadVersion as failure:
                if failure.index != 0:
                    raise
                raise Refusal(ErrorCode.NOT_CONTROLLER, "Another broker has become the controller.") from failure
            except (ConnectionLost, SessionLost) as failure:
                raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not answer.") from failure

    async def _register_broker(self, endpoints: Sequence[Endpoint]) -> Broker:
        broker = Broker(self._broker_id, 0, tuple(endpoints), self._config.broker_rack)
        path = znodes.broker_path(self._broker_id)
        data = znodes.encode_broker(broker, timestamp_ms=self._clock.now_ms())
        try:
            await self._tree.create(path, data, ephemeral=True)
        except NodeExists:
            raise UserError(f"broker.id={self._broker_id} is in use by another broker of this cluster") from None
        stat = (await self._tree.get(path)).stat
        return Broker(broker.id, stat.czxid, broker.endpoints, broker.rack)

    async def _become_controller(self) -> int:
        (node,) = await self._tree.get_many([znodes.CONTROLLER_EPOCH])
        data = znodes.encode_controller(self._broker_id, timestamp_ms=self._clock.now_ms())
        claim = Create(znodes.CONTROLLER, data, ephemeral=True)
        try:
            if node is None:
                epoch = 1
                await self._tree.multi([claim, Create(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(epoch))])
                self._epoch_version = 0
            else:
                epoch = znodes.decode_epoch(node.data) + 1
                advance = SetData(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(epoch), node.stat.version)
                await self._tree.multi([claim, advance])
                self._epoch_version = node.stat.version + 1
        except (NodeExists, BadVersion):
            raise UserError(
                "another broker is the controller of this cluster: brokers that share a cluster are not supported yet"
            ) from None
        return epoch

    async def _create(self, topics: Sequence[Topic]) -> list[Topic]:
        """Writes the topics; answers with those that turned out to be in the tree already."""
        existing: list[Topic] = []
        for group in _groups(topics):
            try:
                await self._write([operation for topic in group for operation in _topic_nodes(topic)])
            except NodeExists:
                existing += await self._create_singly(group)
                continue
            for prepare in self._preparers:
                await prepare(group)
            self._commit([TopicAdded(topic) for topic in group])
        return existing

    async def _create_singly(self, topics: Sequence[Topic]) -> list[Topic]:
        """What a multi refused because one of its nodes is there; configs that outlived their topic are in no way."""
        existing: list[Topic] = []
        for topic in topics:
            config_path = znodes.topic_config_path(topic.name)
            leftover: list[Operation] = [Delete(config_path)] if await self._tree.exists(config_path) else []
            try:
                await self._write([*leftover, *_topic_nodes(topic)])
            except NodeExists:
                existing.append(topic)
                continue
            self._commit([TopicAdded(topic)])
        return existing

    def _judge(self, wishes: Sequence[NewTopic]) -> list[Topic | Refusal]:
        """Each wish as if those before it had been granted already."""
        outcomes: list[Topic | Refusal] = []
        granted: dict[str, str] = {}
        for new in wishes:
            outcome = plan_topic(new, self._image, self._config, self._random_bytes)
            earlier = granted.get(collision_key(new.name))
            if isinstance(outcome, Topic) and earlier is not None:
                outcome = existing_topic_refusal(new.name, earlier)
            elif isinstance(outcome, Topic):
                granted[collision_key(new.name)] = new.name
            outcomes.append(outcome)
        return outcomes

    def _deletable(self, wanted: str | bytes | None) -> Topic | Refusal:
        if isinstance(wanted, str):
            topic, unknown = self._image.topic(wanted), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic, unknown = self._image.topic_by_id(wanted or b""), ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            return Refusal(unknown, "This server does not host this topic.")
        if not self._config.delete_topic_enable:
            return Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled: delete.topic.enable=false.")
        return topic

    async def _finish_deletions(self, names: Sequence[str]) -> None:
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
        await self._write(operations)

    async def _write_topic_ids(self, names: Sequence[str]) -> None:
        """Topics of a Kafka before 2.8 have no ids in the tree; the ones that the load gave them are to stay."""
        topics = [self._image.topics[name] for name in names]
        await self._write(
            [SetData(znodes.topic_path(each.name), znodes.encode_topic(each.id, each.partitions)) for each in topics]
        )

    async def _forget_config_changes(self) -> None:
        """In a cluster of one nobody is left to be told of what changed before the start."""
        names = await self._tree.children(znodes.CONFIG_CHANGES)
        await self._write([Delete(f"{znodes.CONFIG_CHANGES}/{name}") for name in names])

    async def _elect_leaders(self) -> None:
        """A leader for every partition that has none, or whose leader is not there."""
        image = self._image
        created: dict[str, dict[int, Partition]] = {}
        changed: dict[str, dict[int, Partition]] = {}
        for name, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.partition_epoch < 0:
                    state = initial_state(partition.replicas, image.brokers, image.controller_epoch)
                    created.setdefault(name, {})[index] = state
                elif partition.leader not in image.brokers:
                    elected = elect(
                        partition,
                        image.brokers,
                        controller_epoch=image.controller_epoch,
                        unclean_is_allowed=topic_config(self._config, topic.configs).unclean_leader_election_enable,
                    )
                    if elected is not None:
                        changed.setdefault(name, {})[index] = elected
        for name, partitions in created.items():
            await self._create_states(name, partitions)
        await self._change_states(changed)

    async def _create_states(self, name: str, partitions: Mapping[int, Partition]) -> None:
        """A creation that was cut short left some of the nodes behind; the rest is added."""
        wished = [operation.path for operation in _partition_nodes(name, partitions)]
        paths = [znodes.partitions_path(name), *wished]
        nodes = await self._tree.get_many(paths)
        there = {path for path, node in zip(paths, nodes, strict=True) if node is not None}
        operations = [Create(znodes.partitions_path(name)), *_partition_nodes(name, partitions)]
        await self._write([operation for operation in operations if operation.path not in there])
        self._commit([PartitionsChanged(name, partitions)])

    async def _change_states(self, changed: Mapping[str, Mapping[int, Partition]]) -> None:
        await self._write(
            [
                SetData(znodes.state_path(name, index), znodes.encode_state(state), state.partition_epoch - 1)
                for name, partitions in changed.items()
                for index, state in partitions.items()
            ]
        )
        self._commit([PartitionsChanged(name, partitions) for name, partitions in changed.items()])

    def _known(self, name: str) -> Topic:
        topic = self._image.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return topic


def _or_raise(outcome: Topic | Refusal) -> Topic:
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in after.items() if before.get(name) != text}


def _warn_of_inactive(what: str, configs: Mapping[str, str], table: Mapping[str, ConfigKey[Any]]) -> None:
    """Somebody set it: they shall find out that it does nothing."""
    for name in configs:
        if name not in table or not table[name].acts:
            logger.warning("%s of %s is kept, but has no effect in kbroker", name, what)


def _announcement(entity: str) -> Create:
    return Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True)


def _topic_nodes(topic: Topic) -> list[Operation]:
    return [
        # The configs first: whoever sees the topic shall find them.
        Create(znodes.topic_config_path(topic.name), znodes.encode_configs(topic.configs)),
        Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.id, topic.partitions)),
        Create(znodes.partitions_path(topic.name)),
        *_partition_nodes(topic.name, dict(enumerate(topic.partitions))),
    ]


def _partition_nodes(name: str, partitions: Mapping[int, Partition]) -> list[Create]:
    operations = []
    for index, partition in partitions.items():
        operations.append(Create(znodes.partition_path(name, index)))
        operations.append(Create(znodes.state_path(name, index), znodes.encode_state(partition)))
    return operations


def _groups(topics: Sequence[Topic]) -> Iterable[list[Topic]]:
    """Topics that fit into one multi; one that does not fit at all is a group of its own."""
    group: list[Topic] = []
    size = 0
    for topic in topics:
        own = sum(size_of(operation) for operation in _topic_nodes(topic))
        if group and size + own > _MULTI_BYTES:
            yield group
            group, size = [], 0
        group.append(topic)
        size += own
    if group:
        yield group


def _parts(operations: Sequence[Operation]) -> Iterable[list[Operation]]:
    part: list[Operation] = []
    size = 0
    for operation in operations:
        own = size_of(operation)
        if part and size + own > _MULTI_BYTES:
            yield part
            part, size = [], 0
        part.append(operation)
        size += own
    if part:
        yield part


async def generate_broker_id(tree: Tree, *, reserved_max_id: int) -> int:
    """An id that no broker has: the version of a node that every caller writes to, above the ids that people choose."""
    await ensure_layout(tree)
    stat = await tree.set(znodes.BROKER_SEQUENCE, b"")
    return reserved_max_id + stat.version
