"""Topics of a run: created on a broker, and compared at the end with the acknowledged offsets."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.connection import Address, call
from benchmarks.frames import (
    NO_CONFIGS,
    ProducerId,
    batch_is_whole,
    create_topic_frame,
    fetch_frame,
    init_producer_frame,
    list_offsets_frame,
    read_create_topic_answer,
    read_fetch_answer,
    read_init_producer_answer,
    read_list_offsets_answer,
)

__all__ = ["Topic", "WrongAnswer", "create_topic", "init_producer", "log_end_offsets", "verify", "wait_or_raise"]

# The leader or the coordinator is not available yet: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE,
# NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
RETRIABLE_CODES = frozenset({3, 5, 6, 14, 15, 16})
TIMEOUT_SECONDS = 30.0


class WrongAnswer(Exception):
    """The broker's response differs from Apache Kafka's."""


@dataclass(slots=True)
class Topic:
    """Topic of this run on one broker, with the acknowledged end offset of each partition."""

    name: bytes
    ends: list[int] = field(default_factory=lambda: [0])


def create_topic(
    address: Address, name: bytes, partitions: int = 1, configs: Mapping[bytes, bytes] = NO_CONFIGS
) -> Topic:
    code = read_create_topic_answer(call(address, create_topic_frame(name, partitions, configs)), name)
    if code:
        raise WrongAnswer(f"CreateTopics of {name.decode()}: error {code}")
    topic = Topic(name, [0] * partitions)
    if log_end_offsets(address, topic) != topic.ends:
        raise WrongAnswer(f"New topic {name.decode()} is not empty")
    return topic


def init_producer(address: Address) -> ProducerId:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        code, producer = read_init_producer_answer(call(address, init_producer_frame()))
        if not code:
            return producer
        wait_or_raise("InitProducerId", {code}, deadline)


def log_end_offsets(address: Address, topic: Topic) -> list[int]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    partitions = len(topic.ends)
    while True:
        codes, offsets = read_list_offsets_answer(call(address, list_offsets_frame(topic.name, partitions)), topic.name)
        if codes == {0}:
            return [offsets[partition] for partition in range(partitions)]
        wait_or_raise("ListOffsets", codes, deadline)


def wait_or_raise(api_name: str, codes: set[int], deadline: float) -> None:
    """Waits before a retry. Raises WrongAnswer if an error is not retriable or the deadline has passed."""
    if not codes <= RETRIABLE_CODES | {0} or time.monotonic() > deadline:
        raise WrongAnswer(f"{api_name}: errors {sorted(codes)}")
    time.sleep(0.05)


def verify(address: Address, topic: Topic) -> None:
    """Raises WrongAnswer if a log does not end at its acknowledged offset, or if a sampled batch has a wrong CRC."""
    ends = log_end_offsets(address, topic)
    if ends != topic.ends:
        wrong = [partition for partition, end in enumerate(ends) if end != topic.ends[partition]]
        first = wrong[0]
        raise WrongAnswer(
            f"{topic.name.decode()}: {len(wrong)} partitions do not end at the acknowledged offset; "
            f"partition {first} ends at {ends[first]}, expected {topic.ends[first]}"
        )
    end = ends[0]
    if not end:
        return
    buffer, offset_at = fetch_frame(version=4, topic=topic.name, max_bytes=2 << 20)
    for offset in {0, end // 3, end // 2, end - 1}:
        struct.pack_into(">q", buffer, offset_at, offset)
        answer = call(address, buffer)
        _, code, position, size = read_fetch_answer(4, answer, topic.name)
        if code or size <= 0 or not batch_is_whole(answer, position):
            raise WrongAnswer(f"{topic.name.decode()} at offset {offset}: error {code}, {size} bytes, or a wrong CRC")
