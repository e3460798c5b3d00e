"""Several members of one cluster in one loop: requests between them pass the codecs, but no socket."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed
from kbroker.config import BrokerConfig, Endpoint
from kbroker.controller.cluster_member import ClusterMember
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image
from kbroker.controller.tree import Tree
from kbroker.errors import Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.registry import Api
from tests.controller.conftest import Sessions
from tests.controller.test_controller import Recorder, StoppedClock

__all__ = ["Members", "OneMember", "open_members"]

PATIENCE_SECONDS = 20


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

    @property
    def image(self) -> Image:
        return self.controller.image

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            await self.controller.load()
            endpoints = (Endpoint("PLAINTEXT", "broker", 9000 + self.id),)
            await self.member.run(endpoints, task_status=task_status)


class Wire:
    """A connection whose other end is called directly, with what the codecs make of the request."""

    is_open = True

    def __init__(self, members: Members, broker_id: int) -> None:
        self._members = members
        self._broker_id = broker_id

    async def ask(self, asked: Api, /, *, at_least: int = 0, timeout_s: float = 30, **members: Any) -> Any:
        await trio.lowlevel.checkpoint()
        peer = self._members.reachable(self._broker_id)
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

    async def start(self, broker_id: int, **properties: str) -> OneMember:
        tree = await self._sessions.open()
        settings = {name.replace("_", "."): text for name, text in properties.items()}
        one = OneMember(broker_id, tree, self, settings)
        await self._nursery.start(one.run)
        self.all[broker_id] = one  # reachable from here on: a broker accepts nothing before it is registered
        return one

    async def kill(self, broker_id: int) -> None:
        """Its session ends; nothing was handed over."""
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
            await peer.member.inbox.update_metadata(body)
            return _Answer()

        async def leader_and_isr(body: Any) -> Any:
            await peer.member.inbox.leader_and_isr(body)
            return _Answer()

        async def stop_replica(body: Any) -> Any:
            await peer.member.inbox.stop_replica(body)
            return _Answer()

        return {4: leader_and_isr, 5: stop_replica, 6: update_metadata}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looked at whenever an image has changed."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not condition():
                await self._changed.wait()

    async def until_agreed(self, condition: Callable[[Image], bool] = lambda image: True) -> Image:
        """All know the same brokers, topics and controller, and the condition holds; that image, of the controller."""
        images: list[Image] = []

        def agree() -> bool:
            images[:] = [each.image for each in self.all.values()]
            first = images[0]
            return all(_seen(each) == _seen(first) and condition(each) for each in images)

        await self.until(agree)
        return images[0]

    @property
    def controller(self) -> OneMember:
        (one,) = [each for each in self.all.values() if each.member.is_controller]
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
