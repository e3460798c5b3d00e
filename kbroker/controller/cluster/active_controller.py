"""The controller's own work in a cluster, while this broker is the controller.

It keeps image and tree equal, elects leaders when brokers register or leave, finishes the work of earlier controllers,
and sends changes to the other brokers. Never decides which broker is the controller: see `ClusterMember`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from kbroker.controller.changes import (
    BrokerAdded,
    BrokerRemoved,
    Change,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
    apply,
)
from kbroker.controller.cluster.admin_requests import AdminRequests
from kbroker.controller.cluster.controller_channels import ControllerChannels
from kbroker.controller.cluster.event_queue import Event, EventQueue
from kbroker.controller.cluster.node_watches import NodeWatches
from kbroker.controller.controller import Controller
from kbroker.controller.differences import differences
from kbroker.controller.image import NO_LEADER, BrokerRegistration, Image, TopicImage
from kbroker.controller.metadata_loader import read_brokers, read_entity_configs, read_named_topics, read_topics
from kbroker.controller.registration import ControllerRegistration
from kbroker.controller.rules.reassignment import is_due
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Delete, Node, Tree
from kbroker.names import RandomBytes

__all__ = ["ActiveController"]

logger = logging.getLogger(__name__)


class ActiveController:
    """Callers hold exclusive access to the store, except for `resign`."""

    def __init__(
        self,
        controller: Controller,
        tree: Tree,
        channels: ControllerChannels,
        watches: NodeWatches,
        events: EventQueue,
        random_bytes: RandomBytes,
    ) -> None:
        self._controller = controller
        self._store = controller.store
        self._elector = controller.elector
        self._tree = tree
        self._channels = channels
        self._watches = watches
        self._events = events
        self._random_bytes = random_bytes
        self._admin_requests = AdminRequests(controller, tree, watches, events)
        self._store.add_listener(self._on_image)
        self._reported: list[tuple[BrokerRegistration, Sequence[tuple[bytes, int]]]] = []
        self.own_offline: Callable[[], Iterable[tuple[str, int]]] = tuple
        """Returns the partitions whose replica on this broker is in a failed data directory."""

    async def on_elected(self, registration: ControllerRegistration) -> None:
        """Loads the metadata, sends it to every broker, and finishes the work of the previous controller."""
        self._store.activate(registration.epoch_version)
        try:
            await self.reload(registration)
        except BaseException:
            self.resign()
            self._events.put(Event.CONTROLLER)
            raise
        logger.info("Elected controller, epoch %d", registration.epoch)

    def resign(self) -> None:
        if self._store.is_active:
            logger.info("Resigned as controller")
        self._store.resign()
        self._channels.stop()
        self._elector.shutting_down.clear()
        self._admin_requests.forget()

    def _on_image(self, image: Image, changes: Sequence[Change]) -> None:
        if not self._store.is_active:
            return
        for change in changes:
            if isinstance(change, PartitionsChanged) and any(map(is_due, change.partitions.values())):
                self._events.put(Event.REASSIGNMENTS)
            elif isinstance(change, TopicConfigsChanged):
                topic = image.topic(change.topic_name)
                if topic is not None and any(partition.leader == NO_LEADER for partition in topic.partitions):
                    # unclean.leader.election.enable may have been set, for this topic or for all.
                    self._events.put(Event.ELECTIONS)

    async def handle(self, event: Event) -> None:
        match event:
            case Event.BROKERS:
                await self._process_brokers()
            case Event.TOPICS:
                await self._process_topics()
            case Event.LOG_DIRS:
                await self._process_log_dirs()
            case Event.OFFLINE_REPLICAS:
                await self._process_offline()
            case Event.DELETIONS:
                await self._process_deletions()
            case Event.ELECTIONS:
                await self._elector.elect_leaders()
            case Event.REASSIGNMENTS:
                await self._controller.reassigner.finish_due()
            case Event.ADMIN_REQUESTS:
                await self._admin_requests.process()
            case Event.REBALANCE:
                await self._elector.rebalance()
            case Event.CONFLICT:
                await self.reload()

    async def reload(self, elected: ControllerRegistration | None = None) -> None:
        """Reads the whole tree into the image, then elects leaders where needed.

        `elected`: this broker's registration, if it has just become the controller.
        """
        await self._tree.children(znodes.DELETE_TOPICS, self._watches.watch(znodes.DELETE_TOPICS, Event.DELETIONS))
        names = await self._tree.children(znodes.TOPICS, self._watches.watch(znodes.TOPICS, Event.TOPICS))
        await self._read_unwatched(names)
        if elected is None:
            await self._process_brokers()
        brokers = await self.read_brokers()
        may_delete = self._controller.may_delete_topics
        loaded = await read_topics(self._tree, self._random_bytes, self._store.image.topics, may_delete=may_delete)
        configs = await read_entity_configs(self._tree)
        # A newer controller may have sent us its image during the reads. Its image must not be overwritten.
        self._store.check_active()
        image = self._store.image
        changes: list[Change] = [BrokerAdded(broker) for broker in brokers.values()]
        holder = (
            (image.controller_id, image.controller_epoch) if elected is None else (elected.broker_id, elected.epoch)
        )
        changes += [*configs, *loaded.changes, ControllerChanged(*holder)]
        fresh = apply(Image(cluster_id=image.cluster_id), changes)
        if elected is None:
            fresh = _with_offline(fresh, image)
        self._elector.shutting_down.intersection_update(brokers)
        self._store.commit(differences(image, fresh))
        if elected is not None:
            self._channels.start(self._store.image)
        await self._controller.finish_pending(
            pending_deletions=loaded.pending_deletions, topics_without_id=loaded.topics_without_id
        )
        # First: an ISR must not shrink to a replica of this broker that is offline.
        await self._elector.mark_offline(holder[0], self.own_offline())
        await self._elector.elect_leaders(shrink_isrs=True)
        reassigner = self._controller.reassigner
        await (reassigner.finish_due() if elected is None else reassigner.resume())
        await self._admin_requests.process()
        await self._process_log_dirs()

    async def read_brokers(self) -> dict[int, BrokerRegistration]:
        """Reads the registered brokers, and watches for changes."""
        watch = self._watches.watch(znodes.BROKER_IDS, Event.BROKERS)
        names = await self._tree.children(znodes.BROKER_IDS, watch)
        return await read_brokers(self._tree, [int(name) for name in names if name.isdecimal()])

    async def _process_brokers(self) -> None:
        """Compares the registered brokers with the image.

        A bounced broker (same id, new epoch) is first removed and then added: other replicas take over its
        partitions, because it may have lost records.
        """
        brokers = await self.read_brokers()
        self._store.check_active()  # after each wait: a newer controller may have sent us its image
        known = self._store.image.brokers
        deleted = [broker for broker in known.values() if broker.id not in brokers]
        bounced = [
            broker for broker in known.values() if broker.id in brokers and brokers[broker.id].epoch != broker.epoch
        ]
        added = [broker for broker in brokers.values() if broker.id not in known]
        if deleted or bounced or added:
            logger.info(
                "Newly added brokers: %s, deleted brokers: %s, bounced brokers: %s, all live brokers: %s",
                _ids(added),
                _ids(deleted),
                _ids(bounced),
                _ids(brokers.values()),
            )
        removed = [*deleted, *bounced]
        self._elector.shutting_down.difference_update(broker.id for broker in removed)
        if removed:
            self._store.commit([BrokerRemoved(broker.id) for broker in removed])
            self._elector.forget_offline({broker.id for broker in removed})
            await self._elector.elect_leaders(shrink_isrs=True)
        changed = [broker for broker in brokers.values() if self._store.image.brokers.get(broker.id) != broker]
        if changed:
            self._store.commit([BrokerAdded(broker) for broker in changed])
            await self._elector.elect_leaders()

    async def _process_log_dirs(self) -> None:
        """Finds the replicas of brokers that have announced a failed data directory, as Kafka's controller does.

        The brokers report them in their responses to LeaderAndIsr. The announcements are deleted.
        """
        watch = self._watches.watch(znodes.LOG_DIR_EVENTS, Event.LOG_DIRS)
        names = await self._tree.children(znodes.LOG_DIR_EVENTS, watch)
        paths = [f"{znodes.LOG_DIR_EVENTS}/{name}" for name in names]
        nodes = await self._tree.get_many(paths)
        self._store.check_active()
        own_id = self._store.image.controller_id
        for broker_id in dict.fromkeys(znodes.decode_log_dir_event(node.data) for node in nodes if node is not None):
            if broker_id is not None:
                self._channels.ask_for_offline(broker_id)
        await self._elector.mark_offline(own_id, self.own_offline())
        await self._store.write([Delete(path) for path, node in zip(paths, nodes, strict=True) if node is not None])

    def on_offline(self, broker: BrokerRegistration, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Queues the report of a broker: see `ControllerChannels`."""
        self._reported.append((broker, partitions))
        self._events.put(Event.OFFLINE_REPLICAS)

    async def _process_offline(self) -> None:
        reported, self._reported = self._reported, []
        for broker, partitions in reported:
            known = self._store.image.brokers.get(broker.id)
            if known is None or known.epoch != broker.epoch:
                continue  # the broker has left since
            names = self._store.image.topic_names_by_id
            offline = [(names[topic_id], index) for topic_id, index in partitions if topic_id in names]
            await self._elector.mark_offline(broker.id, offline)

    async def _process_topics(self) -> None:
        """Elects leaders for topics and partitions that other writers added: our own are in the image already."""
        names = set(await self._tree.children(znodes.TOPICS, self._watches.watch(znodes.TOPICS, Event.TOPICS)))
        marked = await self._tree.children(znodes.DELETE_TOPICS)
        pending_deletions = set(marked if self._controller.may_delete_topics else ())
        known = self._store.image.topics
        removed = [topic for name, topic in known.items() if name not in names]
        # First, because it sets the watches: a write after the reads below makes a new event.
        written = await self._written_elsewhere(names.difference(pending_deletions))
        added, without_id = await read_named_topics(
            self._tree, sorted(names.difference(known, pending_deletions)), self._random_bytes
        )
        grown, damaged = await read_named_topics(self._tree, written, self._random_bytes, known)
        if added:
            await self._store.prepare(added)
        self._store.check_active()
        changes: list[Change] = [TopicRemoved(topic) for topic in removed]
        changes += [TopicAdded(topic) for topic in added]
        for topic in grown:
            changes += _added_partitions(known[topic.name], topic)
        self._store.commit(changes)
        if added or grown:
            await self._controller.finish_pending(pending_deletions=[], topics_without_id=[*without_id, *damaged])
            await self._elector.elect_leaders()

    async def _read_unwatched(self, names: Iterable[str]) -> dict[str, Node]:
        """Watches the nodes of topics that are not watched: new ones, and those that were written since.

        Returns the nodes that exist.
        """
        unwatched = [name for name in sorted(names) if not self._watches.is_set(znodes.topic_path(name))]
        paths = [znodes.topic_path(name) for name in unwatched]
        nodes = await self._tree.get_many(paths, [self._watches.watch(path, Event.TOPICS) for path in paths])
        for path, node in zip(paths, nodes, strict=True):
            if node is None:
                self._watches.forget(path)
        return {name: node for name, node in zip(unwatched, nodes, strict=True) if node is not None}

    async def _written_elsewhere(self, names: Iterable[str]) -> list[str]:
        """Returns known topics that have more partitions in the tree, or no id.

        `kafka-topics --zookeeper --alter` of Kafka 0.8 to 2.x adds partitions to the node of a topic, and leaves the
        rest to the controller. Before 2.8 it also removes the topic's id.
        """
        changed = []
        for name, node in (await self._read_unwatched(names)).items():
            known = self._store.image.topic(name)
            try:
                assignment = znodes.decode_topic(name, node.data)
            except znodes.BadNode as failure:
                logger.error("Ignored a change of topic %s: %s", name, failure)
                continue
            if known is not None and (len(assignment.replicas) > len(known.partitions) or assignment.topic_id is None):
                changed.append(name)
        return changed

    async def _process_deletions(self) -> None:
        watch = self._watches.watch(znodes.DELETE_TOPICS, Event.DELETIONS)
        names = await self._tree.children(znodes.DELETE_TOPICS, watch)
        self._store.check_active()
        if self._controller.may_delete_topics:
            topics = (self._store.image.topic(name) for name in names)
            self._store.commit([TopicRemoved(topic) for topic in topics if topic is not None])
        await self._controller.finish_pending(pending_deletions=names, topics_without_id=[])


def _added_partitions(known: TopicImage, read: TopicImage) -> list[Change]:
    """Returns the partitions that only the tree has. A topic with another id is a new one: see `reload`."""
    added = dict(enumerate(read.partitions[len(known.partitions) :], len(known.partitions)))
    return [PartitionsChanged(known.name, added)] if added and read.id == known.id else []


def _with_offline(fresh: Image, known: Image) -> Image:
    """Returns the image that was read with the failed replicas of the known one: the tree does not have them."""
    changes: list[Change] = []
    for name, topic in known.topics.items():
        offline = {
            index: state._replace(offline_replicas=partition.offline_replicas)
            for index, partition in enumerate(topic.partitions)
            if partition.offline_replicas and (state := fresh.partition(name, index)) is not None
        }
        if offline and fresh.topics[name].id == topic.id:
            changes.append(PartitionsChanged(name, offline))
    return apply(fresh, changes) if changes else fresh


def _ids(brokers: Iterable[BrokerRegistration]) -> str:
    return ",".join(str(broker_id) for broker_id in sorted(broker.id for broker in brokers))
