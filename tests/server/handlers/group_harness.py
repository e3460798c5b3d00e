"""Broker without sockets that coordinates groups; tests advance trio's clock."""

from __future__ import annotations

import itertools
from typing import Any

import trio

from kbroker.controller.changes import TopicAdded
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.group.result import GroupCoordinatorConfig
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.messages import join_group, offset_commit, sync_group
from kbroker.server.topics.internal_topics import new_topic
from kbroker.server.wire.deadlines import Deadlines
from tests.server.handlers.harness import HandlerBroker, StillClock

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47


class GroupBroker:
    def __init__(self, broker: HandlerBroker, **config: Any) -> None:
        self.broker = broker
        self.deadlines = Deadlines()
        self.config = GroupCoordinatorConfig(**config)
        self.coordinator = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        broker = self.broker
        ids = itertools.count(1)

        async def create_topic() -> None:
            await broker.controller.create_topics([new_topic(CONSUMER_OFFSETS, broker.config, is_single_node=True)])

        made = GroupCoordinator(
            broker_id=1,
            partitions=broker.partitions,
            config=self.config,
            expiry_interval_ms=600_000,
            clock=StillClock(),
            timers=self.deadlines,
            new_id=lambda: str(next(ids)),
            create_topic=create_topic,
            flush_at_end=broker.context.run.flush_at_end,
        )
        made.on_image(broker.image, [TopicAdded(topic) for topic in broker.image.topics.values()])
        broker.controller.add_listener(made.on_image)
        broker.context.groups = made
        broker.context.deadlines = self.deadlines
        return made

    def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.deadlines.run)
        nursery.start_soon(self.coordinator.run)

    def restart(self) -> None:
        """Replaces the coordinator by a new one over the same logs, which has not begun to load."""
        self.coordinator = self._coordinator()

    async def wait_loaded(self) -> None:
        """Waits until all groups are loaded. Loading runs in threads, which the mock clock does not advance."""
        while self.coordinator.shards.is_loading:
            await trio.lowlevel.checkpoint()

    async def ask(self, key: int, version: int, /, **members: Any) -> Any:
        return await self.broker.ask(key, version, **members)

    async def join(self, group: str = "group", member_id: str = "", *, version: int = 9, **members: Any) -> Any:
        protocol = {"name": "range", "metadata": b"subscription"}

        defaults: dict[str, Any] = {
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [join_group.JoinGroupRequestProtocol(**protocol)],
        }
        if version >= 1:
            defaults["rebalance_timeout_ms"] = 60_000
        return await self.ask(JOIN, version, group_id=group, member_id=member_id, **(defaults | members))

    async def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, *, version: int = 5
    ) -> Any:

        given = [
            sync_group.SyncGroupRequestAssignment(member_id=name, assignment=data)
            for name, data in (assignments or {}).items()
        ]
        asked: dict[str, Any] = {"member_id": member_id, "generation_id": generation, "assignments": given}
        if version >= 5:
            asked |= {"protocol_type": "consumer", "protocol_name": "range"}
        return await self.ask(SYNC, version, group_id="group", **asked)

    async def settle(self) -> str:
        """Joins and syncs one member; returns its id. The group is then stable in generation 1."""
        joined = await self.join(version=3)
        await self.sync(joined.member_id, 1, {joined.member_id: b"everything"})
        return str(joined.member_id)

    async def commit(self, offset: int, *, topic: str = "topic", partition: int = 0, version: int = 9, **m: Any) -> Any:

        asked = offset_commit.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=m.pop("metadata", "note")
        )
        topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[asked])]
        answer = await self.ask(OFFSET_COMMIT, version, **({"group_id": "group", "topics": topics} | m))
        return answer.topics[0].partitions[0].error_code
