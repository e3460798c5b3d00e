"""Topics of a run: created on a broker, and compared at the end with the acknowledged offsets."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
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
    metadata_frame,
    read_create_topic_answer,
    read_fetch_answer,
    read_init_producer_answer,
    read_list_offsets_answer,
    read_metadata_answer,
)

__all__ = [
    "Topic",
    "WrongAnswer",
    "check_in_sync",
    "create_topic",
    "find_leaders",
    "init_producer",
    "log_end_offsets",
    "verify",
    "wait_or_raise",
]

# The leader or the coordinator is not available yet: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE,
# NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
RETRIABLE_CODES = frozenset({3, 5, 6, 14, 15, 16})
TIMEOUT_SECONDS = 30.0


class WrongAnswer(Exception):
    """The broker's response differs from Apache Kafka's."""


@dataclass(slots=True)
class Topic:
    """Topic of this run on one broker or cluster, with the acknowledged end offset of each partition."""

    name: bytes
    ends: list[int] = field(default_factory=lambda: [0])
    leaders: list[Address] = field(default_factory=list)
    """Leader of each partition. Empty: the only broker leads all."""

    def leader(self, partition: int, broker: Address) -> Address:
        """Returns the leader of the partition, which is `broker` if there is only this one."""
        return self.leaders[partition] if self.leaders else broker


def create_topic(
    address: Address,
    name: bytes,
    partitions: int = 1,
    configs: Mapping[bytes, bytes] = NO_CONFIGS,
    *,
    replicas: int = 1,
) -> Topic:
    """Creates a topic. With several replicas, waits for that many brokers, and until all replicas are in sync."""
    place = address if replicas == 1 else _controller(address, brokers=replicas)
    frame = create_topic_frame(name, partitions, configs, replicas=replicas)
    code = read_create_topic_answer(call(place, frame), name)
    if code:
        raise WrongAnswer(f"CreateTopics of {name.decode()}: error {code}")
    topic = Topic(name, [0] * partitions)
    if replicas > 1:
        find_leaders(address, topic, replicas)
    if log_end_offsets(address, topic) != topic.ends:
        raise WrongAnswer(f"New topic {name.decode()} is not empty")
    return topic


def _controller(address: Address, *, brokers: int) -> Address:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        state = read_metadata_answer(call(address, metadata_frame()))
        if len(state.brokers) >= brokers and state.controller in state.brokers:
            return state.brokers[state.controller]
        if time.monotonic() > deadline:
            raise WrongAnswer(f"the cluster has {len(state.brokers)} brokers, and controller {state.controller}")
        time.sleep(0.05)


def find_leaders(address: Address, topic: Topic, replicas: int) -> None:
    """Waits until all replicas are in sync, and keeps the leaders in the topic."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (leaders := _leaders(address, topic, replicas)) is None:
        if time.monotonic() > deadline:
            raise WrongAnswer(f"{topic.name.decode()}: not all replicas are in sync after {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.05)
    topic.leaders[:] = leaders


def check_in_sync(address: Address, topic: Topic, replicas: int) -> None:
    """Raises WrongAnswer if a leader has changed, or if a replica is out of sync: fewer replicas cost less."""
    if _leaders(address, topic, replicas) != topic.leaders:
        raise WrongAnswer(f"{topic.name.decode()}: a leader has changed, or a replica is not in sync")


def _leaders(address: Address, topic: Topic, replicas: int) -> list[Address] | None:
    """Returns the leader of each partition; None if a partition has no leader or too few replicas in sync."""
    state = read_metadata_answer(call(address, metadata_frame(topic.name)))
    partitions = [state.partitions.get(index) for index in range(len(topic.ends))]
    leaders = [
        state.brokers[partition.leader]
        for partition in partitions
        if partition is not None and partition.leader in state.brokers and partition.in_sync == replicas
    ]
    return leaders if len(leaders) == len(partitions) else None


def init_producer(address: Address) -> ProducerId:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        code, producer = read_init_producer_answer(call(address, init_producer_frame()))
        if not code:
            return producer
        wait_or_raise("InitProducerId", {code}, deadline)


def log_end_offsets(address: Address, topic: Topic) -> list[int]:
    """Returns the log end offset of each partition, as its leader says."""
    partitions_of: dict[Address, list[int]] = {}
    for partition in range(len(topic.ends)):
        partitions_of.setdefault(topic.leader(partition, address), []).append(partition)
    offsets: dict[int, int] = {}
    for leader, partitions in partitions_of.items():
        offsets |= _log_end_offsets(leader, topic.name, partitions)
    return [offsets[partition] for partition in range(len(topic.ends))]


def _log_end_offsets(leader: Address, name: bytes, partitions: Sequence[int]) -> dict[int, int]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        codes, offsets = read_list_offsets_answer(call(leader, list_offsets_frame(name, partitions)), name)
        if codes == {0}:
            return offsets
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
        answer = call(topic.leader(0, address), buffer)
        _, code, position, size = read_fetch_answer(4, answer, topic.name)
        if code or size <= 0 or not batch_is_whole(answer, position):
            raise WrongAnswer(f"{topic.name.decode()} at offset {offset}: error {code}, {size} bytes, or a wrong CRC")
