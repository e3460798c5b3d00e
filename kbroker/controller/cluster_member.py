"""A broker's place in a cluster: its registration, who the controller is, and what it does when it is the controller.

Everything that happens in the tree passes one queue and is looked at one by one. A session that is lost takes the
registration and the controller's seat with it: the broker then registers anew, under a new epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

import trio

from kbroker.client.connection import connect
from kbroker.clock import Clock
from kbroker.config import BrokerConfig, Endpoint
from kbroker.controller import znodes
from kbroker.controller.changes import (
    BrokerAdded,
    BrokerRemoved,
    Change,
    ControllerChanged,
    TopicAdded,
    TopicRemoved,
    apply,
)
from kbroker.controller.channels import Channels, Connect
from kbroker.controller.claims import ControllerSeat, claim_broker_id, claim_controller, read_controller
from kbroker.controller.control_inbox import ControlInbox
from kbroker.controller.controller import Controller
from kbroker.controller.controller_link import ControllerLink
from kbroker.controller.differences import differences
from kbroker.controller.event_queue import Event, EventQueue
from kbroker.controller.feed import read_brokers, read_entity_configs, read_named_topics, read_topics
from kbroker.controller.image import NO_LEADER, Broker, Image
from kbroker.controller.tree import (
    ConnectionLost,
    Delete,
    NoNode,
    SessionLost,
    SessionState,
    Tree,
    TreeError,
    WatchEvent,
)
from kbroker.errors import Refusal
from kbroker.names import RandomBytes
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ClusterMember"]

logger = logging.getLogger(__name__)

# Kafka's own: long enough for every broker to have seen an announcement.
_ANNOUNCEMENT_MS: Final = 15 * 60_000
_TOLD_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 10.0
_BUMP_SECONDS: Final = 10.0
_HANDED_OVER_SECONDS: Final = 2.0
_CONFLICT_SECONDS: Final = 0.1


class ClusterMember:
    """`run` when the sockets are bound; `leave` before they close."""

    def __init__(
        self,
        controller: Controller,
        tree: Tree,
        *,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        random_bytes: RandomBytes,
        connect: Connect = connect,
    ) -> None:
        self._controller = controller
        self._ledger = controller.ledger
        self._tree = tree
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._random_bytes = random_bytes
        self._events = EventQueue()
        self._armed: set[str] = set()
        self._session_id = 0
        self._broker = Broker(broker_id, -1, ())
        self._announcements: dict[str, int] = {}
        self._told = trio.Event()
        listener_name = config.inter_broker_endpoint.name
        self._channels = Channels(
            broker_id, listener_name, connect, on_stale=lambda: self._events.put(Event.CONTROLLER)
        )
        self.link = ControllerLink(controller, broker_id, listener_name, connect)
        self.inbox = ControlInbox(
            self._ledger, random_bytes, broker_epoch=lambda: self.broker_epoch, on_told=self._told.set
        )
        controller.spread = self._channels.wait_delivered
        self._ledger.on_deposed = self._on_deposed
        self._ledger.on_conflict = lambda: self._events.put(Event.CONFLICT)
        self._ledger.add_listener(self._channels.on_image)
        tree.add_session_listener(self._on_session)

    @property
    def broker_epoch(self) -> int:
        """Of the registration that holds now: what requests to the controller carry."""
        return self._broker.epoch

    @property
    def is_controller(self) -> bool:
        return self._ledger.is_active

    # From start to stop

    async def run(
        self, endpoints: Sequence[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Started: the broker is registered, and there is a controller. UserError: its id is taken."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._channels.run)
            self._broker = Broker(self._broker_id, -1, tuple(endpoints), self._config.broker_rack)
            await self._join()
            nursery.start_soon(self._rebalance)
            task_status.started()
            try:
                while True:
                    await self._look(await self._events.wait_next())
            finally:
                with trio.CancelScope(shield=True):
                    await self.link.aclose()

    async def wait_until_told(self) -> None:
        """Until this broker knows who leads what; not for ever, since it may serve what it does know."""
        with trio.move_on_after(_TOLD_SECONDS):
            await self._told.wait()

    async def leave(self) -> None:
        """Hands leaderships over to others, as far as they can take them."""
        self._ledger.stop_by(trio.current_time() + _LEAVE_SECONDS)
        try:
            remaining = await self.link.shut_down(self.broker_epoch, timeout_s=_LEAVE_SECONDS)
        except Refusal as refusal:
            logger.warning("leaderships are not handed over: %s", refusal.message or refusal.code)
            return
        if remaining:
            logger.warning("%d partitions have nobody else who could lead them", len(remaining))
        # Producers that wait for followers here have to hear that these follow somebody else now.
        with trio.move_on_after(_HANDED_OVER_SECONDS):
            while self._leads_more_than(remaining):
                await self.link.wait_changed()

    def _leads_more_than(self, remaining: Collection[tuple[str, int]]) -> bool:
        return any(
            state.leader == self._broker_id and len(state.replicas) > 1 and (name, index) not in remaining
            for name, topic in self._ledger.image.topics.items()
            for index, state in enumerate(topic.partitions)
        )

    def give_up(self) -> None:
        """Nothing more is waited for."""
        self._ledger.stop_by(trio.current_time())

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """New leader epochs for partitions that are led here; Refusal: not yet.

        No request asks a controller for that. Whoever is not the controller gives its registration up and registers
        anew: all that it led is elected anew then, by a controller of Apache Kafka's too.
        """
        wanted = list(partitions)
        if self._ledger.is_active:
            await self._controller.bump_leader_epochs(wanted)
            return
        before = {key: state.leader_epoch for key in wanted if (state := self._ledger.image.partition(*key))}
        logger.warning("registering anew, so that %d partitions get new leader epochs", len(before))
        with suppress(ConnectionLost, SessionLost, NoNode):  # it registers anew then too
            await self._tree.delete(znodes.broker_path(self._broker_id))
        self._events.put(Event.SESSION)
        with trio.move_on_after(_BUMP_SECONDS):
            while any(
                (state := self._ledger.image.partition(*key)) is not None and state.leader_epoch <= epoch
                for key, epoch in before.items()
            ):
                await self.link.wait_changed()
            return
        raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "No controller has elected leaders anew.")

    # The queue

    def _on_session(self, state: SessionState) -> None:
        self._armed.clear()
        if state is SessionState.CONNECTED:
            self._events.put(Event.SESSION)
        elif state is SessionState.LOST:
            logger.warning("the session with ZooKeeper is lost: registering anew")
            self._resign()

    def _on_deposed(self) -> None:
        self._channels.stop()
        self._events.put(Event.CONTROLLER)

    async def _look(self, event: Event) -> None:
        try:
            match event:
                case Event.SESSION:
                    await self._rejoin()
                case Event.CONTROLLER:
                    await self._follow_controller()
                case Event.CONFIGS:
                    await self._follow_configs()
                case _ if self._ledger.is_active:
                    await self._act(event)
        except (ConnectionLost, SessionLost):
            # What the queue holds is looked at again as a whole when the session is back.
            logger.info("out of touch with ZooKeeper")
            if self._tree.session_state is SessionState.CONNECTED:
                self._events.put(Event.SESSION)
        except Refusal as refusal:
            logger.info("the controller's work was cut short: %s", refusal.message)
        except TreeError as failure:
            # Somebody else works on the same nodes, by hand perhaps: look again at what has become of them.
            logger.warning("the tree is not as it was read: %r", failure)
            await trio.sleep(_CONFLICT_SECONDS)
            self._events.put(Event.CONFLICT if self._ledger.is_active else Event.SESSION)

    async def _act(self, event: Event) -> None:
        async with self._ledger.turn():
            match event:
                case Event.BROKERS:
                    await self._follow_brokers()
                case Event.TOPICS:
                    await self._follow_topics()
                case Event.DELETIONS:
                    await self._follow_deletions()
                case Event.BALANCE:
                    await self._controller.leadership.rebalance()
                case Event.CONFLICT:
                    await self._read_anew()

    # Registration

    async def _join(self) -> None:
        """The claim is not under the lock: an earlier life of this broker may have to end first."""
        self._session_id = self._tree.session_id
        patience_s = self._config.zookeeper_session_timeout_ms / 1000 + 2
        self._broker = await claim_broker_id(
            self._tree, self._broker, timestamp_ms=self._clock.now_ms(), patience_s=patience_s
        )
        async with self._ledger.alone():
            # The others as far as they are there already; from now on the controller tells.
            brokers = await self._read_brokers()
            self._ledger.commit([BrokerAdded(each) for each in brokers.values()])
        await self._follow_configs()
        await self._follow_controller()

    async def _rejoin(self) -> None:
        if self._tree.session_state is not SessionState.CONNECTED:
            return
        stat = await self._tree.exists(znodes.broker_path(self._broker_id))
        is_registered = stat is not None and stat.ephemeral_owner == self._tree.session_id
        if self._session_id != self._tree.session_id or not is_registered:
            self._resign()
            await self._join()
            logger.info("registered anew, under epoch %d", self.broker_epoch)
            return
        await self._follow_configs()
        await self._follow_controller()
        if self._ledger.is_active:
            async with self._ledger.turn():
                await self._read_anew()

    # Who is the controller

    async def _follow_controller(self) -> None:
        async with self._ledger.alone():
            while True:
                await self._tree.exists(znodes.CONTROLLER, self._watch(znodes.CONTROLLER, Event.CONTROLLER))
                seat = await read_controller(self._tree)
                if seat.broker_id == NO_LEADER:
                    self._resign()
                    claimed = await claim_controller(self._tree, self._broker_id, timestamp_ms=self._clock.now_ms())
                    if claimed is None:
                        continue
                    seat = claimed
                break
            if seat.is_mine:
                if not self._ledger.is_active:
                    await self._take_office(seat)
                return
            self._resign()
            image = self._ledger.image
            if (image.controller_id, image.controller_epoch) != (seat.broker_id, seat.epoch):
                self._ledger.commit([ControllerChanged(seat.broker_id, seat.epoch)])

    def _resign(self) -> None:
        if self._ledger.is_active:
            logger.info("no longer the controller")
        self._ledger.resign()
        self._channels.stop()
        self._controller.leadership.leaving.clear()

    async def _take_office(self, seat: ControllerSeat) -> None:
        """Reads everything, tells everybody, and ends what the controller before left undone."""
        self._ledger.activate(seat.epoch_version)
        try:
            await self._read_anew(seat)
        except BaseException:
            self._resign()
            self._events.put(Event.CONTROLLER)
            raise
        logger.info("the controller now, under epoch %d", seat.epoch)
        self._told.set()

    async def _read_anew(self, seat: ControllerSeat | None = None) -> None:
        """Makes the image what the tree is, whatever was missed; then decides what is to be decided.

        `seat`: has just been taken.
        """
        for path, event in ((znodes.TOPICS, Event.TOPICS), (znodes.DELETE_TOPICS, Event.DELETIONS)):
            await self._tree.children(path, self._watch(path, event))
        if seat is None:
            await self._follow_brokers()
        brokers = await self._read_brokers()
        loaded = await read_topics(self._tree, self._random_bytes)
        configs = await read_entity_configs(self._tree)
        # Whoever became the controller meanwhile may have told us more than was read here.
        self._ledger.check_active()
        image = self._ledger.image
        changes: list[Change] = [BrokerAdded(each) for each in brokers.values()]
        holder = (image.controller_id, image.controller_epoch) if seat is None else (seat.broker_id, seat.epoch)
        changes += [*configs, *loaded.changes, ControllerChanged(*holder)]
        fresh = apply(Image(cluster_id=image.cluster_id), changes)
        self._controller.leadership.leaving.intersection_update(brokers)
        self._ledger.commit(differences(image, fresh))
        if seat is not None:
            self._channels.start(self._ledger.image)
        await self._controller.tidy(loaded.pending_deletions, loaded.topics_without_id)
        await self._controller.leadership.elect_leaders(drop_dead=True)

    # What the controller follows

    async def _read_brokers(self) -> dict[int, Broker]:
        names = await self._tree.children(znodes.BROKER_IDS, self._watch(znodes.BROKER_IDS, Event.BROKERS))
        return await read_brokers(self._tree, [int(name) for name in names])

    async def _follow_brokers(self) -> None:
        """Brokers come and go; one that bounced has gone, and then come: what it led is led by others meanwhile."""
        brokers = await self._read_brokers()
        self._ledger.check_active()  # after each wait: another controller may have told us of its image
        known = self._ledger.image.brokers
        gone = [each for each in known.values() if each.id not in brokers or brokers[each.id].epoch != each.epoch]
        leadership = self._controller.leadership
        leadership.leaving.difference_update(each.id for each in gone)
        if gone:
            logger.info("gone: %s", _ids(gone))
            self._ledger.commit([BrokerRemoved(each.id) for each in gone])
            await leadership.elect_leaders(drop_dead=True)
        come = [each for each in brokers.values() if self._ledger.image.brokers.get(each.id) != each]
        if come:
            logger.info("here: %s", _ids(come))
            self._ledger.commit([BrokerAdded(each) for each in come])
            await leadership.elect_leaders()

    async def _follow_topics(self) -> None:
        """Topics that others put into the tree: their partitions get leaders. Our own are known by now."""
        names = set(await self._tree.children(znodes.TOPICS, self._watch(znodes.TOPICS, Event.TOPICS)))
        doomed = set(await self._tree.children(znodes.DELETE_TOPICS))
        known = self._ledger.image.topics
        removed = [topic for name, topic in known.items() if name not in names]
        added, without_id = await read_named_topics(
            self._tree, sorted(names.difference(known, doomed)), self._random_bytes
        )
        if added:
            await self._ledger.prepare(added)
        self._ledger.check_active()
        self._ledger.commit([*(TopicRemoved(each) for each in removed), *(TopicAdded(each) for each in added)])
        if added:
            await self._controller.tidy([], without_id)
            await self._controller.leadership.elect_leaders()

    async def _follow_deletions(self) -> None:
        watch = self._watch(znodes.DELETE_TOPICS, Event.DELETIONS)
        names = await self._tree.children(znodes.DELETE_TOPICS, watch)
        self._ledger.check_active()
        topics = (self._ledger.image.topic(name) for name in names)
        self._ledger.commit([TopicRemoved(topic) for topic in topics if topic is not None])
        await self._controller.finish_deletions(names)

    async def _rebalance(self) -> None:
        """Now and then, leaderships back to those that they were meant for: they pile up where brokers did not stop."""
        while True:
            await trio.sleep(self._config.leader_imbalance_check_interval_seconds)
            if self._config.auto_leader_rebalance_enable and self._ledger.is_active:
                self._events.put(Event.BALANCE)

    # What every broker follows

    async def _follow_configs(self) -> None:
        """Announcements that were not seen yet; the controller clears away those that everybody must have seen."""
        async with self._ledger.alone():
            watch = self._watch(znodes.CONFIG_CHANGES, Event.CONFIGS)
            names = await self._tree.children(znodes.CONFIG_CHANGES, watch)
            now_ms = self._clock.now_ms()
            fresh = [name for name in names if name not in self._announcements]
            nodes = await self._tree.get_many([f"{znodes.CONFIG_CHANGES}/{name}" for name in fresh])
            entities = dict.fromkeys(znodes.decode_config_change(node.data) for node in nodes if node is not None)
            for entity in entities:
                if entity is not None:
                    self._ledger.commit(await self._controller.configs.changes_of(entity))
            self._announcements = {name: self._announcements.get(name, now_ms) for name in names}
            if self._ledger.is_active:
                await self._clear_announcements(now_ms)

    async def _clear_announcements(self, now_ms: int) -> None:
        old = [name for name, seen_ms in self._announcements.items() if now_ms - seen_ms > _ANNOUNCEMENT_MS]
        try:
            await self._ledger.write([Delete(f"{znodes.CONFIG_CHANGES}/{name}") for name in old])
        except NoNode:
            return  # a broker of Apache Kafka's was quicker: each of them clears away

    # Watches

    def _watch(self, path: str, event: Event) -> _Watch | None:
        """One at a time for each node: those that are there hold until they fire, or the session is out of touch."""
        if path in self._armed:
            return None
        self._armed.add(path)
        return _Watch(self, path, event)

    def on_watch(self, path: str, event: Event) -> None:
        self._armed.discard(path)
        self._events.put(event)


class _Watch:
    def __init__(self, member: ClusterMember, path: str, event: Event) -> None:
        self._member = member
        self._path = path
        self._event = event

    def __call__(self, _event: WatchEvent) -> None:
        self._member.on_watch(self._path, self._event)


def _ids(brokers: Sequence[Broker]) -> str:
    return ", ".join(f"broker {each.id}" for each in brokers)
