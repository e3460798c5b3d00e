"""Several cluster members in one event loop: their requests are encoded and decoded, but not sent over sockets."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.cluster.cluster_member import ClusterMember
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image
from kbroker.controller.trees.tree import Tree
from kbroker.errors import Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.messages import controlled_shutdown as shutdown_messages
from kbroker.protocol.messages import leader_and_isr as messages
from kbroker.protocol.registry import Api
from tests.controller.conftest import Sessions
from tests.controller.test_controller import Recorder, StoppedClock

__all__ = ["TIMEOUT_SECONDS", "Members", "OneMember", "open_members"]

TIMEOUT_SECONDS = 60


class OneMember:
    def __init__(self, broker_id: int, tree: Tree, members: Members, properties: dict[str, str]) -> None:
        self.id = broker_id
        self.tree = tree
        config = BrokerConfig.from_properties({"zookeeper.session.timeout.ms": "2000"} | properties)
        randomness = random.Random(broker_id)
        common = {"broker_id": broker_id, "config": config, "clock": StoppedClock()}
        common |= {"random_bytes": randomness.randbytes}
        self.controller = Controller(tree, **common, is_shared=True)  # type: ignore[arg-type]
        self.member = ClusterMember(self.controller, tree, **common, connect=members.connect)  # type: ignore[arg-type]
        self.recorder = Recorder()
        self.controller.add_listener(self.recorder)
        self.controller.add_listener(members.on_image)
        self.scope = trio.CancelScope()
        self.is_deaf = False
        """Whether connections to this broker fail."""
        self.is_silent = False
        """Whether this broker accepts requests and never answers them, like a process that is suspended."""

    @property
    def image(self) -> Image:
        return self.controller.image

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.controller.load()
            endpoints = (Endpoint("PLAINTEXT", "broker", 9000 + self.id),)
            await self.member.run(endpoints, task_status=task_status)


class Wire:
    """A connection that calls the other member directly, with the encoded and decoded request."""

    is_open = True

    def __init__(self, members: Members, broker_id: int) -> None:
        self._members = members
        self._broker_id = broker_id

    async def send(self, asked: Api, /, *, at_least: int = 0, timeout_s: float = 30, **members: Any) -> Any:
        await trio.lowlevel.checkpoint()
        peer = self._members.reachable(self._broker_id)
        if peer.is_silent:
            await trio.sleep_forever()
        parts: list[Any] = []
        version = asked.versions[-1]
        codec(asked.request, version).encode(asked.request(**members), parts)
        body, _end = codec(asked.request, version).decode(b"".join(parts))
        try:
            return await self._members.handlers(peer)[asked.key](body)
        except Refusal as refusal:
            return asked.response(error_code=refusal.code)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Members:
    def __init__(self, sessions: Sessions, nursery: trio.Nursery) -> None:
        self._sessions = sessions
        self._nursery = nursery
        self.all: dict[int, OneMember] = {}
        self._changed = trio.Event()

    def on_image(self, _image: Image, _changes: object) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def start(self, broker_id: int, *, tree: Tree | None = None, **properties: str) -> OneMember:
        """`tree`: the broker's session, if the test needs its own."""
        tree = tree or await self._sessions.open()
        settings = {name.replace("_", "."): text for name, text in properties.items()}
        one = OneMember(broker_id, tree, self, settings)
        await self._nursery.start(one.run)
        self.all[broker_id] = one  # reachable from here on: a broker accepts no connections before it is registered
        return one

    async def kill(self, broker_id: int) -> None:
        """Ends the member and its session, without a controlled shutdown."""
        one = self.all.pop(broker_id)
        one.scope.cancel()
        await self._sessions.close(one.tree)

    async def expire(self, broker_id: int) -> None:
        await self._sessions.expire(self.all[broker_id].tree)

    async def connect(self, address: Address, /, *, client_id: str) -> Any:
        await trio.lowlevel.checkpoint()
        self.reachable(address.port - 9000)
        return Wire(self, address.port - 9000)

    def reachable(self, broker_id: int) -> OneMember:
        peer = self.all.get(broker_id)
        if peer is None or peer.is_deaf:
            raise ConnectionFailed("broker", f"broker {broker_id} does not answer")
        return peer

    def handlers(self, peer: OneMember) -> dict[int, Callable[[Any], Any]]:
        async def update_metadata(body: Any) -> Any:
            await peer.member.control_requests.update_metadata(body)
            return _Answer()

        async def leader_and_isr(body: Any) -> Any:
            codes = await peer.member.control_requests.leader_and_isr(body)
            return messages.RESPONSE(
                topics=[
                    messages.LeaderAndIsrTopicError(
                        topic_id=topic.topic_id,
                        partition_errors=[
                            messages.LeaderAndIsrPartitionError(
                                partition_index=state.partition_index,
                                error_code=codes[topic.topic_name, state.partition_index],
                            )
                            for state in topic.partition_states
                        ],
                    )
                    for topic in body.topic_states
                ]
            )

        async def stop_replica(body: Any) -> Any:
            await peer.member.control_requests.stop_replica(body)
            return _Answer()

        async def controlled_shutdown(body: Any) -> Any:
            remaining = await peer.controller.shut_down(body.broker_id, broker_epoch=body.broker_epoch)
            return shutdown_messages.RESPONSE(
                remaining_partitions=[
                    shutdown_messages.RemainingPartition(topic_name=name, partition_index=index)
                    for name, index in remaining
                ]
            )

        return {4: leader_and_isr, 5: stop_replica, 6: update_metadata, 7: controlled_shutdown}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, which is checked after each change of an image."""
        with trio.fail_after(TIMEOUT_SECONDS):
            while not condition():
                await self._changed.wait()

    async def until_agreed(self, condition: Callable[[Image], bool] = lambda image: True) -> Image:
        """Waits until all members have equal images for which the condition holds. Returns the image."""
        images: list[Image] = []

        def agree() -> bool:
            images[:] = [member.image for member in self.all.values()]
            first = images[0]
            return all(_seen(image) == _seen(first) and condition(image) for image in images)

        await self.until(agree)
        return images[0]

    @property
    def controller(self) -> OneMember:
        (one,) = [member for member in self.all.values() if member.member.is_controller]
        return one


class _Answer:
    error_code = 0


def _seen(image: Image) -> tuple[object, ...]:
    return sorted(image.brokers), image.topics, image.controller_id, image.controller_epoch, image.entity_configs


@asynccontextmanager
async def open_members(sessions: Sessions) -> AsyncIterator[Members]:
    async with trio.open_nursery() as nursery:
        yield Members(sessions, nursery)
        nursery.cancel_scope.cancel()
