"""The controller: the broker that writes the cluster's metadata, and the requests that it serves.

Topics, partitions, configs, leaders. `MetadataStore` holds the image and the right to write. In a cluster,
`ClusterMember` decides which broker is the controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import BrokerAdded, Change, ClusterIdSet, ControllerChanged, TopicAdded
from kbroker.controller.config_writer import ConfigsUpdate, ConfigWriter
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage, without_leader
from kbroker.controller.leader_elector import LeaderElector
from kbroker.controller.metadata_loader import ensure_layout, read_cluster_id, read_entity_configs, read_topics
from kbroker.controller.metadata_store import ImageListener, MetadataStore, TopicPreparer
from kbroker.controller.partition_reassigner import PartitionReassigner, WantedReplicas
from kbroker.controller.registration import register_broker, register_controller
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.topic_writer import TopicWriter
from kbroker.controller.trees import znodes
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import BadVersion, Delete, Tree
from kbroker.controller.trees.znodes import ProducerIdBlock
from kbroker.errors import Refusal, UserError
from kbroker.names import RandomBytes

__all__ = ["ConfigsUpdate", "Controller", "ImageListener"]


PRODUCER_ID_BLOCK_SIZE: Final = 1000


def _accept_cluster(_cluster_id: str) -> None:
    """Accepts any cluster."""


class Controller:
    """Call `load`, then `register`; from then on `image` is valid and the other methods change it.

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
        self.store = MetadataStore(tree, broker_id=broker_id, config=config)
        self.elector = LeaderElector(self.store, config, clock)
        self.reassigner = PartitionReassigner(self.store, self.elector, clock)
        self.configs = ConfigWriter(self.store, is_shared=is_shared)
        self._topics = TopicWriter(self.store, config, random_bytes, clock)
        self.wait_propagated: Callable[[], Awaitable[None]] = _no_other_brokers
        """Awaited after new partitions: clients may ask any broker for them next, so all brokers should know them."""
        self._pending_deletions: list[str] = []
        self._topics_without_id: list[str] = []

    @property
    def image(self) -> Image:
        """Returns the newest image; each change makes a new object."""
        return self.store.image

    def add_listener(self, listener: ImageListener) -> None:
        """Adds a listener that is called right after each change, with the new image. It must not raise."""
        self.store.add_listener(listener)

    def add_preparer(self, preparer: TopicPreparer) -> None:
        """Adds a function that is awaited with topics before they are added to the image.

        It is for slow work, since listeners cannot wait. It must not raise. The topics may not be added after all.
        """
        self.store.add_preparer(preparer)

    @property
    def may_delete_topics(self) -> bool:
        """Whether nodes below /admin/delete_topics delete topics. Otherwise only the nodes are removed, as in Kafka."""
        return self._config.delete_topic_enable

    # Start

    async def start(self, endpoints: Sequence[Endpoint]) -> None:
        await self.load()
        await self.register(endpoints)

    async def load(self, on_cluster_id: Callable[[str], object] = _accept_cluster) -> None:
        """Reads the tree into the image. Listeners get all topics as added, in one call.

        `on_cluster_id` is called before, with the cluster's id. If it raises, no listener has seen a topic: logs of
        another cluster must not be opened, because a topic of the same name has another id there, and its log would be
        deleted.
        """
        await retry_until_connected(lambda: self._load(on_cluster_id))

    async def _load(self, on_cluster_id: Callable[[str], object]) -> None:
        async with self.store.exclusive():
            await ensure_layout(self._tree)
            cluster_id = await read_cluster_id(self._tree, self._random_bytes)
            on_cluster_id(cluster_id)
            # Before the topics: broker configs are the defaults of topic configs.
            self.store.commit(await read_entity_configs(self._tree))
            # A single node has written every node itself: if one is damaged, its metadata file is.
            loaded = await read_topics(
                self._tree, self._random_bytes, may_delete=self.may_delete_topics, is_strict=not self._is_shared
            )
            self._pending_deletions = loaded.pending_deletions
            self._topics_without_id = loaded.topics_without_id
            changes = [_without_leaders(change) for change in loaded.changes] if self._is_shared else loaded.changes
            self.store.commit([ClusterIdSet(cluster_id), *changes])

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Registers the only broker of a cluster, makes it the controller, and finishes earlier work."""
        async with self.store.exclusive():
            broker = await self._register_broker(endpoints)
            epoch = await self._become_controller()
            self.store.commit([BrokerAdded(broker), ControllerChanged(self._broker_id, epoch)])
            await self.finish_pending(
                pending_deletions=self._pending_deletions, topics_without_id=self._topics_without_id
            )
            self._pending_deletions = []
            await self._delete_config_changes()
            await self.elector.elect_leaders()

    async def _register_broker(self, endpoints: Sequence[Endpoint]) -> BrokerRegistration:
        broker = BrokerRegistration(self._broker_id, 0, tuple(endpoints), self._config.broker_rack)
        return await register_broker(self._tree, broker, timestamp_ms=self._clock.now_ms())

    async def _become_controller(self) -> int:
        registration = await register_controller(self._tree, self._broker_id, timestamp_ms=self._clock.now_ms())
        if registration is None:
            raise UserError("Another broker is the controller of this cluster.")
        self.store.activate(registration.epoch_version)
        return registration.epoch

    async def finish_pending(self, *, pending_deletions: Sequence[str], topics_without_id: Sequence[str]) -> None:
        """Finishes deletions that an earlier controller began, and writes missing topic ids."""
        await self._topics.finish_deletions(pending_deletions)
        await self._topics.write_topic_ids(topics_without_id)

    async def _delete_config_changes(self) -> None:
        """Deletes announcements of config changes: a single node has read all configs at its start."""
        names = await self._tree.children(znodes.CONFIG_CHANGES)
        await self.store.write([Delete(f"{znodes.CONFIG_CHANGES}/{name}") for name in names])

    # Topics

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicImage:
        (outcome,) = await self.create_topics([new], validate_only=validate_only)
        return _or_raise(outcome)

    async def create_topics(
        self, requests: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicImage | Refusal]:
        """Returns an outcome for each request, in order. Topics that fit into one multi are created together."""
        async with self.store.as_controller():
            outcomes = await self._topics.create(requests, validate_only=validate_only)
        if not validate_only:
            await self.wait_propagated()
        return outcomes

    async def delete_topic(self, *, name: str | None = None, topic_id: bytes | None = None) -> TopicImage:
        (outcome,) = await self.delete_topics([topic_id if name is None else name])
        return _or_raise(outcome)

    async def delete_topics(self, wanted: Sequence[str | bytes | None]) -> list[TopicImage | Refusal]:
        """Deletes topics by name (str) or id (bytes). Returns an outcome for each, in order."""
        async with self.store.as_controller():
            return await self._topics.delete(wanted)

    async def create_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicImage:
        """Adds partitions until the topic has `total`. Returns the topic with them."""
        async with self.store.as_controller():
            grown = await self._topics.create_partitions(name, total, assignment, validate_only=validate_only)
        if not validate_only:
            await self.wait_propagated()
        return grown

    # Configs

    async def alter_topic_configs(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> None:
        """Replaces all config overrides of the topic."""
        await self.update_topic_configs(name, lambda _: configs, validate_only=validate_only)

    async def update_topic_configs(self, name: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Replaces the topic's overrides by the result of `update`. Checks last that the topic exists, as Kafka."""
        async with self.store.operation():
            await self.configs.update_topic(name, update, validate_only=validate_only)

    async def update_entity_configs(self, entity: str, update: ConfigsUpdate, *, validate_only: bool = False) -> None:
        """Replaces configs or quotas of an entity that is not a topic by the result of `update`.

        `entity`: as in `config_entities.entity_path`. Configs of this broker take effect at once.
        """
        async with self.store.operation():
            await self.configs.update_entity(entity, update, validate_only=validate_only)

    # Leaders

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Writes a new leader epoch with the same leader: for a log that recovery truncated, before it is served.

        Followers and consumers that read the lost records find the point of divergence by the epoch.
        """
        async with self.store.as_controller():
            await self.elector.bump_leader_epochs(partitions)

    async def elect(
        self, wanted: Sequence[tuple[str, int]] | None, *, is_unclean: bool = False
    ) -> dict[tuple[str, int], Refusal | None]:
        """See `LeaderElector.elect`."""
        async with self.store.as_controller():
            return await self.elector.elect(wanted, is_unclean=is_unclean)

    async def alter_partitions(
        self, broker_id: int, *, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Refusal]:
        """See `LeaderElector.alter_partitions`."""
        async with self.store.as_controller():
            return await self.elector.alter_partitions(broker_id, broker_epoch=broker_epoch, proposals=proposals)

    async def reassign(
        self, wanted: WantedReplicas, *, may_change_factor: bool = True
    ) -> dict[tuple[str, int], Refusal | None]:
        """See `PartitionReassigner.alter`."""
        async with self.store.as_controller():
            return await self.reassigner.alter(wanted, may_change_factor=may_change_factor)

    async def shut_down(self, broker_id: int, *, broker_epoch: int = -1) -> list[tuple[str, int]]:
        """See `LeaderElector.shut_down`."""
        async with self.store.as_controller():
            return await self.elector.shut_down(broker_id, broker_epoch=broker_epoch)

    # Producer ids

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Returns a block of unused ids. Any broker may allocate one, so the controller epoch is not checked."""
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
                continue  # another broker allocated this block
            return block


async def _no_other_brokers() -> None:
    """Waits for nothing: a single node has no other brokers."""


def _or_raise(outcome: TopicImage | Refusal) -> TopicImage:
    if isinstance(outcome, Refusal):
        raise outcome
    return outcome


def _without_leaders(change: Change) -> Change:
    """Returns a loaded topic without leaders.

    The tree may name this broker as leader from an earlier run. It must not lead before the controller says so: the
    controller may be electing another leader.
    """
    if not isinstance(change, TopicAdded):
        return change
    topic = change.topic
    return TopicAdded(replace(topic, partitions=tuple(without_leader(partition) for partition in topic.partitions)))
