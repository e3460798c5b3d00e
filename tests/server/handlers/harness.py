"""A broker without sockets: real dispatch, controller on an embedded tree, and logs; requests are frames of bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import trio

from kbroker.config import BrokerConfig, Endpoint
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image, Topic
from kbroker.controller.topic_rules import NewTopic
from kbroker.controller.tree import Tree
from kbroker.log.directory import DataDirectory
from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import OsFileSystem
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import api
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.append_run import AppendRun
from kbroker.server.authorization import AllowAll, Authorizer, Operation, ResourceType
from kbroker.server.context import Context
from kbroker.server.deadlines import Deadlines
from kbroker.server.dispatch import Dispatch
from kbroker.server.producer_ids import ProducerIds
from kbroker.server.quotas import Quotas
from kbroker.server.request_slot import RequestSlot
from tests.log.batches import NOW, append

ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092), Endpoint("EXTERNAL", "kbroker.example", 19092))


class StillClock:
    """Goes on by `ticks` each time that somebody looks at it."""

    seconds = 0.0
    ticks = 0.0

    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        self.seconds += self.ticks
        return self.seconds


class Peer:
    """The connection, as far as dispatch knows it."""

    def __init__(self, listener_name: str) -> None:
        self.listener_name = listener_name
        self.peer_host = "192.0.2.7"
        self.session = None
        self.shape: Any = None
        self.repeated: Any = None
        self.shapes_left = 32
        self.is_closed = False
        self.muted_seconds = 0.0
        self.answered = trio.Event()

    def on_slot_done(self, slot: RequestSlot) -> None:
        self.answered.set()

    def mute(self, seconds: float, deadlines: Deadlines) -> None:
        self.muted_seconds = max(self.muted_seconds, seconds)

    def close(self) -> None:
        self.is_closed = True
        self.answered.set()


class Allowing:
    """An authorizer that knows a list of what is allowed: (operation, resource name)."""

    allows_all = False

    def __init__(self, *allowed: tuple[Operation, str]) -> None:
        self.allowed = set(allowed)

    def allows(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        return (operation, name) in self.allowed


class FrozenController:
    """A controller of a cluster that does not change."""

    def __init__(self, image: Image) -> None:
        self.image = image


class HandlerBroker:
    def __init__(
        self,
        tree: Tree,
        config: BrokerConfig,
        directory: Path,
        nursery: trio.Nursery,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.config = config
        self.controller = Controller(tree, broker_id=1, config=config, clock=StillClock(), random_bytes=random_bytes)
        self.directory = DataDirectory.open(FileCache(OsFileSystem()), str(directory), broker_id=1)
        self.partitions = PartitionTable(
            [self.directory],
            broker_id=1,
            config=config,
            flusher=Flusher(StillClock()),
            clock=StillClock(),
            random_name=lambda: os.urandom(16).hex(),
        )
        self.controller.add_listener(self.partitions.on_image)
        self.clock = StillClock()
        self.quotas = Quotas(config, self.clock, Deadlines())
        self.controller.add_listener(self.quotas.on_image)
        parts: dict[str, Any] = {
            "broker_id": 1,
            "config": config,
            "clock": StillClock(),
            "controller": self.controller,
            "partitions": self.partitions,
            "producer_ids": ProducerIds(self.controller.allocate_producer_ids),
            "authorizer": AllowAll(),
            "append_run": AppendRun(StillClock()),
            "quotas": self.quotas,
            "nursery": nursery,
        }
        # What these handlers do not use is left out.
        given: dict[str, Any] = {each.name: parts.get(each.name) for each in fields(Context)}
        self.context = Context(**given)
        self.dispatch = Dispatch(self.context)

    async def start(self) -> None:
        await self.controller.start(ENDPOINTS)
        await self.partitions.recover()

    def close(self) -> None:
        """As a crash would: nothing is written."""
        for partition in self.partitions:
            partition.log.close_files()
        self.directory.release()

    @property
    def image(self) -> Image:
        return self.controller.image

    def allow(self, *allowed: tuple[Operation, str]) -> None:
        authorizer: Authorizer = Allowing(*allowed)
        self.context.authorizer = authorizer

    async def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> Topic:
        return await self.controller.create_topic(NewTopic(name, partitions=partitions, configs=configs or {}))

    def log(self, name: str, index: int = 0) -> PartitionLog:
        partition = self.partitions.get(name, index)
        assert partition is not None
        return partition.log

    def append(self, name: str, batch: bytearray, index: int = 0, *, epoch: int = 0, internal: bool = False) -> int:
        return append(self.log(name, index), batch, epoch=epoch, internal=internal)

    async def ask(self, key: int, version: int, /, *, listener: str = "PLAINTEXT", **members: Any) -> Any:
        """The decoded answer to one request, by way of bytes in both directions."""
        asked = api(key)
        body = codec(asked.request, version).to_bytes(asked.request(**members))
        answer = await self.ask_raw(key, version, body, asked.request_header_version(version), listener=listener)
        return parse_response(key, version, answer)

    async def ask_raw(
        self, key: int, version: int, body: bytes, header_version: int, *, listener: str = "PLAINTEXT"
    ) -> bytes:
        """The whole frame of the answer."""
        header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id="me")
        frame = codec(REQUEST_HEADER, header_version).to_bytes(header) + body
        peer = Peer(listener)
        slot = RequestSlot(cast(Any, peer))
        self.dispatch.handle(cast(Any, peer), memoryview(bytearray(frame)), slot)
        await trio.lowlevel.checkpoint()  # requests of one turn are one run
        self.dispatch.end_run()
        await peer.answered.wait()
        assert not peer.is_closed, "the connection was closed instead of an answer"
        return b"".join(cast(Any, slot.parts))


def parse_response(key: int, version: int, frame: bytes) -> Any:
    answered = api(key)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = codec(RESPONSE_HEADER, answered.response_header_version(version)).decode(frame, 4)
    assert header.correlation_id == 77
    response, end = codec(answered.response, version).decode(frame, position)
    assert end == len(frame)
    return response
