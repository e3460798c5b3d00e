"""Loads of consumer groups: members that join with either protocol, heartbeats, commits, a million offsets.

Members are state machines on sockets, with a timer for the next heartbeat. As in load.py, every response is checked.
"""

from __future__ import annotations

import os
import select
import struct
import time
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.connection import Address, Connection, call
from benchmarks.encoding import CORRELATION_AT, Buffer
from benchmarks.figures import Figures, figures_of
from benchmarks.group_frames import (
    CONSUMER_GROUP_HEARTBEAT,
    api_versions_frame,
    commit_frame,
    consumer_heartbeat_frame,
    fetch_offsets_frame,
    find_coordinator_frame,
    heartbeat_frame,
    join_frame,
    read_api_versions_answer,
    read_commit_answer,
    read_consumer_heartbeat_answer,
    read_error_after_throttle,
    read_fetch_offsets_answer,
    read_find_coordinator_answer,
    read_join_answer,
    read_sync_answer,
    sync_frame,
)
from benchmarks.topics import Topic, WrongAnswer, wait_or_raise

__all__ = [
    "ClassicMembers",
    "ConsumerMembers",
    "Members",
    "await_coordinator",
    "check_committed",
    "commit",
    "commit_many",
    "connected",
    "heartbeat",
    "serves_consumer_protocol",
    "settle",
]

# Clients send heartbeats every three (classic) or five seconds; that wait would hide the broker's time.
HEARTBEAT_SECONDS = 0.1
RESPONSE_SECONDS = 60.0
TIMEOUT_SECONDS = 60.0
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
CLIENT_MADE_ID_SINCE = 1

pack_int = struct.Struct(">i").pack_into
pack_long = struct.Struct(">q").pack_into
unpack_int = struct.Struct(">i").unpack_from


class Members(Protocol):
    """All members of one group, driven by `settle`; a member is identified by its index."""

    def first(self, index: int) -> Buffer: ...

    def due(self, index: int) -> Buffer:
        """Returns the member's next heartbeat."""
        ...

    def receive(self, index: int, answer: Buffer) -> Buffer | None:
        """Handles a response; returns the member's next request, None to wait for its next heartbeat."""
        ...

    @property
    def is_settled(self) -> bool: ...


class ClassicMembers:
    """Members of the classic protocol; the leader assigns each member an equal range of partitions."""

    def __init__(self, group: bytes, topic: Topic, count: int) -> None:
        self._group, self._topic, self.count = group, topic, count
        self.member_ids = [b""] * count
        self.generations = [-1] * count
        self._receivers: list[Callable[[int, Buffer], Buffer | None]] = [self._joined] * count
        self._whole_generation = -1
        self._stable: set[int] = set()

    @property
    def is_settled(self) -> bool:
        return len(self._stable) == self.count

    def first(self, index: int) -> Buffer:
        self._stable.discard(index)
        self._receivers[index] = self._joined
        return join_frame(self._group, self.member_ids[index], self._topic.name)

    def due(self, index: int) -> Buffer:
        self._receivers[index] = self._heartbeat_received
        return self.heartbeat(index)

    def heartbeat(self, index: int) -> bytearray:
        return heartbeat_frame(self._group, self.generations[index], self.member_ids[index])

    def receive(self, index: int, answer: Buffer) -> Buffer | None:
        return self._receivers[index](index, answer)

    def _joined(self, index: int, answer: Buffer) -> Buffer:
        code, generation, member_id, member_ids = read_join_answer(answer)
        self.member_ids[index] = member_id
        if code == MEMBER_ID_REQUIRED:
            return self.first(index)
        if code:
            raise WrongAnswer(f"JoinGroup of member {index}: error {code}")
        self.generations[index] = generation
        self._receivers[index] = self._synced
        if len(member_ids) == self.count:
            self._whole_generation = generation
            self._stable.clear()
        shares = self._shares(member_ids) if member_ids else {}
        return sync_frame(self._group, generation, member_id, shares, self._topic.name)

    def _shares(self, member_ids: Sequence[bytes]) -> Mapping[bytes, Sequence[int]]:
        partitions, members = len(self._topic.ends), len(member_ids)
        bounds = [partitions * number // members for number in range(members + 1)]
        return {member_id: range(bounds[at], bounds[at + 1]) for at, member_id in enumerate(member_ids)}

    def _synced(self, index: int, answer: Buffer) -> Buffer | None:
        code, size = read_sync_answer(answer)
        if code == REBALANCE_IN_PROGRESS:
            return self.first(index)
        if code or size <= 0:
            raise WrongAnswer(f"SyncGroup of member {index}: error {code}, an assignment of {size} bytes")
        if self.generations[index] == self._whole_generation:
            self._stable.add(index)
        return None

    def _heartbeat_received(self, index: int, answer: Buffer) -> Buffer | None:
        code = read_error_after_throttle(answer)
        if code == REBALANCE_IN_PROGRESS:
            return self.first(index)
        if code:
            raise WrongAnswer(f"Heartbeat of member {index}: error {code}")
        return None


class ConsumerMembers:
    """Members of the consumer protocol (KIP-848); a member accepts its assignment and acknowledges it."""

    def __init__(self, group: bytes, topic: Topic, count: int) -> None:
        self._group, self._topic, self.count = group, topic, count
        self._ids = [urlsafe_b64encode(os.urandom(16)).rstrip(b"=") for _ in range(count)]
        self._epochs = [0] * count
        self._owned: list[Mapping[bytes, Sequence[int]]] = [{}] * count

    @property
    def is_settled(self) -> bool:
        if not self._epochs[0] or len(set(self._epochs)) > 1:
            return False
        owned = [partition for topics in self._owned for partitions in topics.values() for partition in partitions]
        return len(owned) == len(self._topic.ends) == len(set(owned))

    def first(self, index: int) -> Buffer:
        return consumer_heartbeat_frame(
            self._group, self._ids[index], self._epochs[index], topic=self._topic.name, owned=self._owned[index]
        )

    due = first

    def receive(self, index: int, answer: Buffer) -> Buffer | None:
        code, epoch, assignment = read_consumer_heartbeat_answer(answer)
        if code:
            raise WrongAnswer(f"ConsumerGroupHeartbeat of member {index}: error {code}")
        self._epochs[index] = epoch
        if assignment is None or assignment == self._owned[index]:
            return None
        self._owned[index] = assignment
        return self.first(index)


@contextmanager
def connected(address: Address, count: int) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Connection(address)) for _ in range(count)]


@contextmanager
def _waited_for(connections: Sequence[Connection]) -> Iterator[Callable[[float], list[int]]]:
    """Yields a function that waits at most the given seconds and returns the indexes of connections with a response."""
    index_of = {connection.fileno(): index for index, connection in enumerate(connections)}
    with select.epoll() as poll:
        for fd in index_of:
            poll.register(fd, select.EPOLLIN)
        yield lambda seconds: [index_of[fd] for fd, _ in poll.poll(seconds)]


def settle(broker: Broker, connections: Sequence[Connection], members: Members) -> Figures:
    """Runs from the first join until all members are stable with an assignment; counted as one request."""
    heartbeats: deque[tuple[float, int]] = deque()
    now = time.perf_counter
    with _waited_for(connections) as wait:
        cpu, start = cpu_seconds(broker.pid), now()
        for index, connection in enumerate(connections):
            connection.send(members.first(index))
        while not members.is_settled:
            if now() - start > TIMEOUT_SECONDS:
                raise WrongAnswer(f"{len(connections)} members have not settled within {TIMEOUT_SECONDS:.0f} s")
            for index in wait(max(0.0, heartbeats[0][0] - now()) if heartbeats else HEARTBEAT_SECONDS):
                next_request = members.receive(index, connections[index].answer())
                if next_request is None:
                    heartbeats.append((now() + HEARTBEAT_SECONDS, index))
                else:
                    connections[index].send(next_request)
            while heartbeats and heartbeats[0][0] <= now():
                _, index = heartbeats.popleft()
                connections[index].send(members.due(index))
        seconds = now() - start
        cpu = cpu_seconds(broker.pid) - cpu
    for index in set(range(len(connections))) - {index for _, index in heartbeats}:
        connections[index].answer()  # response to a heartbeat that was in flight when the last member became stable
    return figures_of(requests=1, messages=1, size_bytes=0, seconds=seconds, cpu_seconds=cpu, latencies=[seconds])


def heartbeat(
    broker: Broker, connections: Sequence[Connection], frames: Sequence[bytearray], *, requests: int
) -> Figures:
    """Sends heartbeats on all connections, with one in flight on each."""
    latencies: list[float] = []
    began = [0.0] * len(frames)
    sent = 0
    now = time.perf_counter

    def send(index: int) -> None:
        nonlocal sent
        pack_int(frames[index], CORRELATION_AT, sent)
        sent += 1
        began[index] = now()
        connections[index].send(frames[index])

    with _waited_for(connections) as wait:
        cpu, start = cpu_seconds(broker.pid), now()
        for index in range(len(frames)):
            send(index)
        while len(latencies) < sent:
            ready = wait(RESPONSE_SECONDS)
            if not ready:
                raise TimeoutError(f"no response within {RESPONSE_SECONDS:.0f} s")
            for index in ready:
                answer = connections[index].answer()
                latencies.append(now() - began[index])
                code = read_error_after_throttle(answer)
                if code or answer[:4] != frames[index][CORRELATION_AT : CORRELATION_AT + 4]:
                    raise WrongAnswer(f"Heartbeat on connection {index}: error {code}, or a wrong correlation id")
                if sent < requests:
                    send(index)
        seconds = now() - start
        cpu = cpu_seconds(broker.pid) - cpu
    return figures_of(requests=sent, messages=sent, size_bytes=0, seconds=seconds, cpu_seconds=cpu, latencies=latencies)


def commit(
    broker: Broker,
    group: bytes,
    topic: Topic,
    *,
    requests: int,
    in_flight: int,
    generation: int,
    member_id: bytes,
) -> Figures:
    """Commits one partition after another on one connection, then checks the last committed offsets."""
    partitions = len(topic.ends)
    buffer = commit_frame(group, topic.name, [0], generation=generation, member_id=member_id)
    partition_at, offset_at = len(buffer) - 18, len(buffer) - 14
    now = time.perf_counter
    sent: list[float] = []
    latencies: list[float] = []
    with Connection(broker.address) as connection:

        def receive() -> None:
            index = len(latencies)
            answer = connection.answer()
            latencies.append(now() - sent[index])
            codes = read_commit_answer(answer, topic.name)
            if unpack_int(answer)[0] != index or codes != {0}:
                raise WrongAnswer(f"OffsetCommit {index}: correlation id {unpack_int(answer)[0]}, errors {codes}")

        cpu, start = cpu_seconds(broker.pid), now()
        for index in range(requests):
            pack_int(buffer, CORRELATION_AT, index)
            pack_int(buffer, partition_at, index % partitions)
            pack_long(buffer, offset_at, index)
            sent.append(now())
            connection.send(buffer)
            if index - len(latencies) >= in_flight - 1:
                receive()
        while len(latencies) < requests:
            receive()
        seconds = now() - start
        cpu = cpu_seconds(broker.pid) - cpu
    expected = {index % partitions: index for index in range(max(0, requests - partitions), requests)}
    check_committed(broker.address, group, topic, expected)
    return figures_of(
        requests=requests, messages=requests, size_bytes=0, seconds=seconds, cpu_seconds=cpu, latencies=latencies
    )


def commit_many(address: Address, groups: Sequence[bytes], topic: Topic, *, offset: int) -> None:
    """Commits all partitions of the topic for every group, without members; one request for each group."""
    with Connection(address) as connection:
        for sent, group in enumerate(groups):
            connection.send(commit_frame(group, topic.name, range(len(topic.ends)), offset=offset))
            if sent:
                _check_codes(connection.answer(), topic)
        if groups:
            _check_codes(connection.answer(), topic)


def _check_codes(answer: Buffer, topic: Topic) -> None:
    codes = read_commit_answer(answer, topic.name)
    if codes != {0}:
        raise WrongAnswer(f"OffsetCommit of {len(topic.ends)} partitions: errors {codes}")


def check_committed(address: Address, group: bytes, topic: Topic, expected: Mapping[int, int]) -> None:
    answer = call(address, fetch_offsets_frame(group, topic.name, sorted(expected)))
    code, offsets = read_fetch_offsets_answer(answer, topic.name)
    wrong = [partition for partition, offset in expected.items() if offsets.get(partition) != offset]
    if code or wrong:
        first = wrong[0] if wrong else 0
        raise WrongAnswer(
            f"{group.decode()}: error {code}; {len(wrong)} partitions have a wrong committed offset; "
            f"partition {first} has {offsets.get(first)}, expected {expected.get(first)}"
        )


def await_coordinator(address: Address, group: bytes) -> None:
    """Waits until the group's coordinator is available and has loaded its groups."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        code = read_find_coordinator_answer(call(address, find_coordinator_frame(group)))
        if not code:
            code, _ = read_fetch_offsets_answer(call(address, fetch_offsets_frame(group)), b"")
        if not code:
            return
        wait_or_raise("FindCoordinator or OffsetFetch", {code}, deadline)


def serves_consumer_protocol(address: Address) -> bool:
    served = read_api_versions_answer(call(address, api_versions_frame()))
    return served.get(CONSUMER_GROUP_HEARTBEAT, (0, -1))[1] >= CLIENT_MADE_ID_SINCE
