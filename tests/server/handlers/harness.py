"""Broker without sockets: real dispatch, controller on an embedded tree, and logs. Requests are frames of bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import trio

from kbroker.clock import SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.controller import Controller
from kbroker.controller.image import Image, TopicImage
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees.tree import Tree
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.log.open_log import OpenLog
from kbroker.protocol.acl_codes import AclOperation, ResourceType
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import api
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.flusher import Flusher
from kbroker.replication.log_dirs import LogDirs
from kbroker.server.access.authorization import AllowAll, Authorizer
from kbroker.server.context import Context
from kbroker.server.coordinators.producer_ids import ProducerIds
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.requests.dispatch import Dispatch
from kbroker.server.requests.run import Run
from kbroker.server.requests.thread_work import ThreadWork
from kbroker.server.topics.topic_creation import AutoCreationRate
from kbroker.server.wire.deadlines import Deadlines
from kbroker.server.wire.request_slot import RequestSlot
from tests.log.batches import NOW, append

ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092), Endpoint("EXTERNAL", "kbroker.example", 19092))


class StillClock:
    """Clock that advances by `ticks` seconds each time `monotonic` is called."""

    seconds = 0.0
    ticks = 0.0

    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        self.seconds += self.ticks
        return self.seconds


class Peer:
    """Fake of a connection, with the members that dispatch uses."""

    def __init__(self, listener_name: str) -> None:
        self.listener_name = listener_name
        self.peer_host = "192.0.2.7"
        self.session = ClientSession()
        self.is_closed = False
        self.is_abandoned = False
        self.muted_seconds = 0.0
        self.holds = 0
        self.answered = trio.Event()

    def has_peer_left(self) -> bool:
        return self.is_closed

    def abandon(self) -> None:
        self.is_abandoned = True

    def on_slot_done(self, slot: RequestSlot) -> None:
        self.answered.set()

    def mute(self, seconds: float, deadlines: Deadlines) -> None:
        self.muted_seconds = max(self.muted_seconds, seconds)

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        assert self.holds
        self.holds -= 1

    def drop(self, reason: str) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.answered.set()


class Allowing:
    """Authorizer that allows only the given pairs of operation and resource name."""

    allows_all = False
    logs_all = False

    def __init__(self, *allowed: tuple[AclOperation, str]) -> None:
        self.allowed = set(allowed)

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        return (operation, name) in self.allowed

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        return any(operation is allowed for allowed, _ in self.allowed)

    def audit(self, *decision: object, is_allowed: bool) -> None:
        pass


class FrozenController:
    """Controller whose image never changes."""

    def __init__(self, image: Image) -> None:
        self.image = image


def _random_name() -> str:
    return os.urandom(16).hex()


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
        self.replicas = AssignedReplicas(
            LogDirs([self.directory], clock=StillClock(), random_name=_random_name),
            broker_id=1,
            config=config,
            flusher=Flusher(StillClock()),
            clock=StillClock(),
            random_name=_random_name,
        )
        self.partitions, self.log_dirs, self.moves = self.replicas.table, self.replicas.log_dirs, self.replicas.moves
        self.controller.add_listener(self.replicas.on_image)
        self.clock = StillClock()
        self.quotas = Quotas(config, self.clock, Deadlines())
        self.controller.add_listener(self.quotas.on_image)
        parts: dict[str, Any] = {
            "broker_id": 1,
            "config": config,
            "clock": StillClock(),
            "controller": self.controller,
            "partitions": self.partitions,
            "log_dirs": self.log_dirs,
            "moves": self.moves,
            "producer_ids": ProducerIds(self.controller.allocate_producer_ids),
            "authorizer": AllowAll(),
            "run": Run(StillClock()),
            "quotas": self.quotas,
            "auto_creation": AutoCreationRate(self.clock),
            "thread_work": ThreadWork(SystemClock()),
            "nursery": nursery,
            "deadlines": Deadlines(),
            "listener_keys": {},
        }
        # Parts that these handlers do not use are None.
        given: dict[str, Any] = {field.name: parts.get(field.name) for field in fields(Context)}
        self.context = Context(**given)
        self.dispatch = Dispatch(self.context)

    async def start(self) -> None:
        await self.controller.start(ENDPOINTS)
        await self.replicas.recover()

    def close(self) -> None:
        """Closes files without writing anything, as a crash does."""
        for partition in self.partitions:
            partition.log_handle.close_files()
        self.directory.release()

    @property
    def image(self) -> Image:
        return self.controller.image

    def allow(self, *allowed: tuple[AclOperation, str]) -> None:
        authorizer: Authorizer = Allowing(*allowed)
        self.context.authorizer = authorizer

    async def create_topic(
        self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None
    ) -> TopicImage:
        return await self.controller.create_topic(NewTopic(name, partitions=partitions, configs=configs or {}))

    def log(self, name: str, index: int = 0) -> OpenLog:
        partition = self.partitions.get(name, index)
        assert partition is not None
        return partition.log

    def append(self, name: str, batch: bytearray, index: int = 0, *, epoch: int = 0, internal: bool = False) -> int:
        return append(self.log(name, index), batch, epoch=epoch, internal=internal)

    async def ask(self, key: int, version: int, /, *, listener: str = "PLAINTEXT", **members: Any) -> Any:
        """Encodes and sends one request; returns the decoded response."""
        called = api(key)
        body = codec(called.request, version).to_bytes(called.request(**members))
        answer = await self.ask_raw(key, version, body, called.request_header_version(version), listener=listener)
        return parse_response(key, version, answer)

    async def ask_raw(
        self, key: int, version: int, body: bytes, header_version: int, *, listener: str = "PLAINTEXT"
    ) -> bytes:
        """Sends one request body; returns the frame of the response."""
        header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id="me")
        frame = codec(REQUEST_HEADER, header_version).to_bytes(header) + body
        peer = Peer(listener)
        slot = RequestSlot(cast(Any, peer))
        self.dispatch.handle(cast(Any, peer), memoryview(bytearray(frame)), slot)
        await trio.lowlevel.checkpoint()  # requests that arrive before a checkpoint are one run
        self.context.run.write()
        await peer.answered.wait()
        assert not peer.is_closed, "the connection was closed without a response"
        return b"".join(part.read() if isinstance(part, FileSlice) else part for part in cast(Any, slot.parts))


def parse_response(key: int, version: int, frame: bytes) -> Any:
    called = api(key)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = codec(RESPONSE_HEADER, called.response_header_version(version)).decode(frame, 4)
    assert header.correlation_id == 77
    response, end = codec(called.response, version).decode(frame, position)
    assert end == len(frame)
    return response
