"""Consumers of the consumer protocol (KIP-848): of confluent-kafka, and hand-written on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka

from compat_tests.scenarios.groups import Member
from compat_tests.scenarios.test_groups_wire import Wire
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages

__all__ = ["ConsumerMember", "WireMember", "poll_for", "shared"]

HEARTBEAT = 68
NOT_YET = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


class ConsumerMember(Member):
    """Consumer of confluent-kafka with `group.protocol=consumer`; the broker sets its heartbeat interval."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.consumer = confluent_kafka.Consumer(config | given)
        self.seen: list[int] = []
        self.rebalances = 0
        self.consumer.subscribe([topic], on_assign=self._on_assign)


class WireMember:
    """Member that sends hand-written heartbeats."""

    def __init__(self, wire: Wire, group: str, member_id: str) -> None:
        self._wire, self._group, self.member_id = wire, group, member_id

    def beat(self, epoch: int, version: int = 1, **members: Any) -> Any:
        """Sends a heartbeat, and retries until the group has a coordinator."""
        asked = {"group_id": self._group, "member_id": self.member_id, "member_epoch": epoch, **members}
        answer = self._wire.ask(HEARTBEAT, version, **asked)
        for _ in range(100):
            if answer.error_code not in NOT_YET:
                break
            time.sleep(0.1)
            answer = self._wire.ask(HEARTBEAT, version, **asked)
        return answer

    def join(self, topics: list[str] | None, **members: Any) -> Any:
        first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": topics, "topic_partitions": []}
        return self.beat(0, **{**first, **members})

    @staticmethod
    def owned(topic_id: bytes, *partitions: int) -> list[Any]:
        return [messages.TopicPartitions(topic_id=topic_id, partitions=list(partitions))]


def shared(answer: Any) -> list[int] | None:
    """Returns the partitions that a response assigns, None if it has no assignment."""
    if answer.assignment is None:
        return None
    return sorted(index for topic in answer.assignment.topic_partitions for index in topic.partitions)


def poll_for(members: Iterable[Member], seconds: float, is_done: Callable[[], bool], condition: str) -> None:
    """Like `poll_until` with a longer deadline: a session of the consumer protocol lasts at least 45 seconds."""
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, f"not reached: {condition}"
        for member in members:
            member.poll()
