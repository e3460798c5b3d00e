"""A broker's membership in a cluster: its registration, its session, and which broker is the controller.

All tree events pass through one queue and are processed one at a time. If the session is lost, the broker's
registration and the controller's node go with it; the broker then registers again, with a new epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import trio

from kbroker.client.connection import connect
from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import BrokerAdded, Change, ControllerChanged
from kbroker.controller.cluster.active_controller import ActiveController
from kbroker.controller.cluster.config_notifications import ConfigNotifications
from kbroker.controller.cluster.control_request_handler import ControlRequestHandler
from kbroker.controller.cluster.controller_channels import ConnectToBroker, ControllerChannels
from kbroker.controller.cluster.controller_link import ControllerLink
from kbroker.controller.cluster.event_queue import Event, EventQueue
from kbroker.controller.cluster.node_watches import NodeWatches
from kbroker.controller.controller import Controller
from kbroker.controller.image import NO_LEADER, BrokerRegistration
from kbroker.controller.metadata_loader import read_brokers
from kbroker.controller.registration import (
    ControllerRegistration,
    read_controller,
    register_broker,
    register_controller,
)
from kbroker.controller.rules.election import is_online
from kbroker.controller.trees import znodes
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import ConnectionLost, Delete, NoNode, SessionLost, SessionState, Tree, TreeError
from kbroker.errors import Refusal
from kbroker.names import RandomBytes
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ClusterMember"]

logger = logging.getLogger(__name__)

_METADATA_SECONDS: Final = 10.0
_SHUTDOWN_SECONDS: Final = 10.0
_BUMP_SECONDS: Final = 10.0
_HANDED_OVER_SECONDS: Final = 2.0
_CONFLICT_SECONDS: Final = 0.1


class ClusterMember:
    """Call `run` when the sockets are bound, and `shut_down` and `resign` before they are closed."""

    def __init__(
        self,
        controller: Controller,
        tree: Tree,
        *,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        random_bytes: RandomBytes,
        connect: ConnectToBroker = connect,
    ) -> None:
        self._controller = controller
        self._store = controller.store
        self._tree = tree
        self._broker_id = broker_id
        self._config = config
        self._clock = clock
        self._session_id = 0
        self._broker = BrokerRegistration(broker_id, -1, ())
        self._metadata_received = trio.Event()
        self._is_stopping = False
        self.events = EventQueue()
        self._watches = NodeWatches(self.events)
        listener_name = config.inter_broker_endpoint.name
        self._channels = ControllerChannels(
            broker_id,
            listener_name,
            connect,
            on_stale=lambda: self.events.put(Event.CONTROLLER),
            on_offline=lambda broker, partitions: self._active.on_offline(broker, partitions),
        )
        self._active = ActiveController(controller, tree, self._channels, self._watches, self.events, random_bytes)
        self._config_notifications = ConfigNotifications(self._store, controller.configs, tree, self._watches, clock)
        self.link = ControllerLink(controller, broker_id, listener_name, connect)
        self.control_requests = ControlRequestHandler(
            self._store,
            random_bytes,
            broker_epoch=lambda: self.broker_epoch,
            on_metadata=self._metadata_received.set,
        )
        controller.wait_propagated = self._channels.wait_delivered
        self._store.on_deposed = self._on_deposed
        self._store.on_conflict = lambda: self.events.put(Event.CONFLICT)
        self._store.add_listener(self._channels.on_image)
        tree.add_session_listener(self._on_session)

    @property
    def broker_epoch(self) -> int:
        """Returns the epoch of the current registration, which requests to the controller carry."""
        return self._broker.epoch

    @property
    def is_controller(self) -> bool:
        return self._store.is_active

    # Failed data directories

    def report_offline(self, offline: Callable[[], Collection[tuple[str, int]]]) -> None:
        """Sets the function that returns the partitions of this broker in failed data directories."""
        self._active.own_offline = offline
        self.control_requests.offline = offline

    async def announce_failed_directory(self) -> None:
        """Tells the controller that a data directory of this broker has failed. Waits until the tree accepts it."""
        data = znodes.encode_log_dir_event(self._broker_id)
        await retry_until_connected(lambda: self._tree.create(znodes.LOG_DIR_EVENT, data, sequential=True))

    async def read_topic_names(self) -> list[str]:
        """Returns the names of all topics in the tree, also of those that are being deleted. Waits for the tree."""
        return await retry_until_connected(lambda: self._tree.children(znodes.TOPICS))

    # Start and stop

    async def run(
        self, endpoints: Sequence[Endpoint], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Registers the broker and processes tree events.

        Reports "started" when the broker is registered and a controller is known. Raises UserError if another broker
        has the same id.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self._channels.run)
            self._broker = BrokerRegistration(self._broker_id, -1, tuple(endpoints), self._config.broker_rack)
            # As an event, so that a connection lost in between is handled like one lost later.
            self.events.put(Event.SESSION)
            while self._store.image.controller_id == NO_LEADER:
                await self._handle(await self.events.wait_next())
            nursery.start_soon(self._schedule_rebalance)
            task_status.started()
            try:
                while True:
                    await self._handle(await self.events.wait_next())
            finally:
                with trio.CancelScope(shield=True):
                    await self.link.aclose()

    async def wait_metadata_received(self) -> None:
        """Waits until this broker knows all leaders, at most 10 seconds: it can serve the partitions it does know."""
        with trio.move_on_after(_METADATA_SECONDS):
            await self._metadata_received.wait()

    async def shut_down(self) -> None:
        """Moves leaderships to other brokers, where another replica can lead.

        Tries controlled.shutdown.max.retries times, as Kafka does: replicas that lag may rejoin the ISR meanwhile. The
        next attempt does not wait for controlled.shutdown.retry.backoff.ms if all of them have, or have gone.
        """
        attempts = max(self._config.controlled_shutdown_max_retries, 1)
        pause_seconds = max(self._config.controlled_shutdown_retry_backoff_ms, 0) / 1000
        self._store.stop_by(trio.current_time() + _SHUTDOWN_SECONDS + (attempts - 1) * pause_seconds)
        remaining: Collection[tuple[str, int]] = ()
        for attempt in range(attempts):
            try:
                remaining = await self.link.shut_down(self.broker_epoch, timeout_s=_SHUTDOWN_SECONDS)
            except Refusal as refusal:
                logger.warning("Controlled shutdown failed: %s", refusal.message or refusal.code)
                return
            waiting = set(self._followed_elsewhere(remaining))
            if not waiting or attempt == attempts - 1:
                break
            text = "Controlled shutdown: waiting for replicas of %d partitions that are not in sync"
            logger.info(text, len(waiting))
            with trio.move_on_after(pause_seconds):
                while any(self._is_alone_in_isr(*key) for key in waiting):
                    await self.link.wait_changed()
                    waiting = set(self._followed_elsewhere(waiting))
        if remaining:
            logger.warning("Controlled shutdown: no other replica can lead %d partitions", len(remaining))
        # Wait until the new leaders are known here. Otherwise producers that wait for followers would not get
        # NOT_LEADER_OR_FOLLOWER before their connections are closed.
        with trio.move_on_after(_HANDED_OVER_SECONDS):
            while self._leads_more_than(remaining):
                await self.link.wait_changed()

    def _followed_elsewhere(self, partitions: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Iterates over the partitions that have another replica on a live broker."""
        image = self._store.image
        for key in partitions:
            state = image.partition(*key)
            if state is not None and any(
                replica != self._broker_id and is_online(state, replica, image.brokers) for replica in state.replicas
            ):
                yield key

    def _is_alone_in_isr(self, topic: str, index: int) -> bool:
        state = self._store.image.partition(topic, index)
        return state is not None and state.isr == (self._broker_id,)

    async def resign(self) -> None:
        """Leaves the controller's node to another broker, because this broker is about to stop.

        The node would otherwise stay until the session ends, which is after the logs are flushed: until then no
        broker could elect leaders. If there is a next controller, it is told that this broker is stopping, so that it
        does not add the broker to ISRs again.
        """
        self._is_stopping = True
        if not self._store.is_active:
            return
        await self._channels.wait_delivered()
        try:
            async with self._store.as_controller():
                await self._store.write([Delete(znodes.CONTROLLER)])
            self._active.resign()
            if len(self._store.image.brokers) > 1 and self._config.controlled_shutdown_enable:
                await self.link.shut_down(self.broker_epoch, timeout_s=_HANDED_OVER_SECONDS)
        except (Refusal, TreeError) as failure:
            logger.info("Resigning as controller was interrupted: %r", failure)

    def _leads_more_than(self, remaining: Collection[tuple[str, int]]) -> bool:
        return any(
            state.leader == self._broker_id and len(state.replicas) > 1 and (name, index) not in remaining
            for name, topic in self._store.image.topics.items()
            for index, state in enumerate(topic.partitions)
        )

    def stop_waiting(self) -> None:
        """Lets all waiting tree operations fail at once."""
        self._store.stop_by(trio.current_time())

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Gets new leader epochs for partitions that this broker leads. Raises Refusal if they did not change in time.

        Kafka has no request for this. A broker that is not the controller deletes its registration and registers
        again: any controller, also one of Apache Kafka, then elects leaders for all partitions that the broker led.
        """
        wanted = list(partitions)
        if self._store.is_active:
            await self._controller.bump_leader_epochs(wanted)
            return
        before = {key: state.leader_epoch for key in wanted if (state := self._store.image.partition(*key))}
        logger.warning("Registering again, so that %d partitions get new leader epochs", len(before))
        with suppress(ConnectionLost, SessionLost, NoNode):  # in these cases too, the broker registers again
            await self._tree.delete(znodes.broker_path(self._broker_id))
        self.events.put(Event.SESSION)
        with trio.move_on_after(_BUMP_SECONDS):
            while any(
                (state := self._store.image.partition(*key)) is not None and state.leader_epoch <= epoch
                for key, epoch in before.items()
            ):
                await self.link.wait_changed()
            return
        raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "The controller did not elect leaders in time.")

    # Events

    def _on_session(self, state: SessionState) -> None:
        self._watches.clear()
        if state is SessionState.CONNECTED:
            self.events.put(Event.SESSION)
        elif state is SessionState.LOST:
            logger.warning("ZooKeeper session expired; registering again")
            self._active.resign()

    def _on_deposed(self) -> None:
        self._channels.stop()
        self.events.put(Event.CONTROLLER)

    async def _handle(self, event: Event) -> None:
        try:
            match event:
                case Event.SESSION:
                    await self._check_registration()
                case Event.CONTROLLER:
                    await self._elect_controller()
                case Event.CONFIGS:
                    await self._config_notifications.process()
                case _ if self._store.is_active:
                    async with self._store.as_controller():
                        await self._active.handle(event)
        except (ConnectionLost, SessionLost):
            # Nothing is lost: the SESSION event that follows a reconnect makes the broker read everything again.
            logger.info("Lost connection to ZooKeeper")
            if self._tree.session_state is SessionState.CONNECTED:
                self.events.put(Event.SESSION)
        except Refusal as refusal:
            logger.info("Processing of a controller event was interrupted: %s", refusal.message)
            if refusal.code == ErrorCode.REQUEST_TIMED_OUT:  # a lost connection, during a controller's operation
                await trio.sleep(_CONFLICT_SECONDS)
                self.events.put(Event.SESSION)
        except znodes.BadNode as failure:
            # The watches are set: when the node is repaired, the next event reads it again.
            logger.error("Ignored a change in the metadata tree: %s", failure)
        except TreeError as failure:
            # Another writer, perhaps an operator, changed the same nodes: read them again.
            logger.warning("Conflicting write in the metadata tree: %r", failure)
            await trio.sleep(_CONFLICT_SECONDS)
            self.events.put(Event.CONFLICT if self._store.is_active else Event.SESSION)

    async def _schedule_rebalance(self) -> None:
        while True:
            await trio.sleep(self._config.leader_imbalance_check_interval_seconds)
            if self._config.auto_leader_rebalance_enable and self._store.is_active:
                self.events.put(Event.REBALANCE)

    # Registration

    async def _register(self) -> None:
        # Without exclusive access to the store: this may wait for the session of an earlier run to end.
        session_id = self._tree.session_id
        wait_s = self._config.zookeeper_session_timeout_ms / 1000 + 2
        self._broker = await register_broker(self._tree, self._broker, timestamp_ms=self._clock.now_ms(), wait_s=wait_s)
        # Only now: until the epoch of the new registration is known, `_check_registration` must register again.
        self._session_id = session_id
        logger.info(
            "Registered broker %d at path %s with addresses: %s, czxid (broker epoch): %d",
            self._broker_id,
            znodes.broker_path(self._broker_id),
            ",".join(map(str, self._broker.endpoints)),
            self.broker_epoch,
        )
        await self._config_notifications.process()
        await self._elect_controller()

    async def _check_registration(self) -> None:
        """Registers the broker again if its node is missing or belongs to an earlier session; catches up otherwise."""
        if self._tree.session_state is not SessionState.CONNECTED:
            return
        stat = await self._tree.exists(znodes.broker_path(self._broker_id))
        is_registered = stat is not None and stat.ephemeral_owner == self._tree.session_id
        if self._session_id != self._tree.session_id or not is_registered:
            self._active.resign()
            await self._register()
            return
        await self._config_notifications.process()
        await self._elect_controller()
        if self._store.is_active:
            async with self._store.as_controller():
                await self._active.reload()

    async def _elect_controller(self) -> None:
        """Follows the controller's node. If there is none, this broker tries to become the controller."""
        async with self._store.exclusive():
            while True:
                watch = self._watches.watch(znodes.CONTROLLER, Event.CONTROLLER)
                await self._tree.exists(znodes.CONTROLLER, watch)
                controller = await read_controller(self._tree)
                if controller.broker_id == NO_LEADER:
                    self._active.resign()
                    if self._is_stopping:
                        return
                    elected = await register_controller(self._tree, self._broker_id, timestamp_ms=self._clock.now_ms())
                    if elected is None:
                        continue  # another broker was quicker
                    controller = elected
                break
            if controller.is_mine:
                if not self._store.is_active:
                    await self._active.on_elected(controller)
                    self._metadata_received.set()
                return
            self._active.resign()
            await self._follow(controller)

    async def _follow(self, controller: ControllerRegistration) -> None:
        """Adds the controller to the image.

        The controller sends the other brokers. A client that learned them here, before the controller knows them, could
        create a topic on them, and the controller would refuse it.
        """
        brokers = await read_brokers(self._tree, [controller.broker_id])
        image = self._store.image
        if controller.epoch < image.controller_epoch:
            return  # a newer controller has sent us its image during the read
        changes: list[Change] = [BrokerAdded(broker) for broker in brokers.values() if broker.id not in image.brokers]
        if (image.controller_id, image.controller_epoch) != (controller.broker_id, controller.epoch):
            changes.append(ControllerChanged(controller.broker_id, controller.epoch))
        self._store.commit(changes)
