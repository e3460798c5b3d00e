"""Loads: produce on one connection, on many, or at a steady rate; fetch a topic from its beginning.

Every response is checked; a wrong one raises WrongAnswer. Hot loops: local names, no output.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.connection import Address, Connection
from benchmarks.figures import Figures, figures_of
from benchmarks.frames import (
    CORRELATION_AT,
    ProducerId,
    fetch_frame,
    next_offset_after,
    produce_frame,
    read_fetch_answer,
    read_produce_answer,
    record_batch,
)
from benchmarks.topics import Topic, WrongAnswer, init_producer

__all__ = ["Payload", "fetch", "produce", "produce_at_rate", "produce_on_many", "read_from_beginning"]

PLAIN_VERSION = 7
RESPONSE_SECONDS = 60.0

pack_int = struct.Struct(">i").pack_into
pack_long = struct.Struct(">q").pack_into


@dataclass(frozen=True, slots=True)
class Payload:
    """Records of a batch: the same bytes for both brokers."""

    count: int
    variants: Sequence[bytes]
    codec: int = 0
    """Codec with which the variants are compressed."""

    def batches(self, producer: ProducerId | None = None, *, requests: int = 0) -> list[bytes]:
        """Returns a batch for each variant; with a producer id, a batch for each request, in sequence."""
        now_ms = int(time.time() * 1000)
        if producer is None:
            return [record_batch(self.count, records, now_ms=now_ms, codec=self.codec) for records in self.variants]
        return [
            record_batch(
                self.count,
                self.variants[index % len(self.variants)],
                now_ms=now_ms,
                producer=producer,
                sequence=index * self.count,
                codec=self.codec,
            )
            for index in range(requests)
        ]


def produce(
    broker: Broker,
    topic: Topic,
    payload: Payload,
    *,
    requests: int,
    in_flight: int,
    version: int = PLAIN_VERSION,
    acks: int = 1,
    idempotent: bool = False,
) -> Figures:
    """Produces to the topic's partitions in turn, on one connection, and checks that base offsets are contiguous.

    In a cluster, the leader of partition 0 must lead all of them.
    """
    producer = init_producer(broker.address) if idempotent else None
    batches = payload.batches(producer, requests=requests)
    built = [produce_frame(version=version, topic=topic.name, batch=batch, acks=acks) for batch in batches]
    buffers, partition_at = [frame for frame, _ in built], built[0][1]
    name, ends, count, kinds, partitions = topic.name, topic.ends, payload.count, len(buffers), len(topic.ends)
    now = time.perf_counter
    sent: list[float] = []
    latencies: list[float] = []
    with Connection(topic.leader(0, broker.address)) as connection:
        send, next_answer = connection.send, connection.answer

        def receive() -> None:
            index = len(latencies)
            correlation_id, code, base = read_produce_answer(version, next_answer(), name)
            latencies.append(now() - sent[index])
            partition = index % partitions
            if correlation_id != index or code or base != ends[partition]:
                raise WrongAnswer(
                    f"Produce {index} to partition {partition}: correlation id {correlation_id}, error {code}, "
                    f"base offset {base}, expected {ends[partition]}"
                )
            ends[partition] = base + count

        cpu, start = cpu_seconds(*broker.pids), now()
        for index in range(requests):
            buffer = buffers[index % kinds]
            pack_int(buffer, CORRELATION_AT, index)
            if partitions > 1:
                pack_int(buffer, partition_at, index % partitions)
            sent.append(now())
            send(buffer)
            if index - len(latencies) >= in_flight - 1:
                receive()
        while len(latencies) < requests:
            receive()
        seconds = now() - start
        cpu = cpu_seconds(*broker.pids) - cpu
    return figures_of(
        requests=requests,
        messages=requests * count,
        size_bytes=requests * len(batches[0]),
        seconds=seconds,
        cpu_seconds=cpu,
        latencies=latencies,
    )


def produce_on_many(
    broker: Broker, topic: Topic, payload: Payload, *, connections: int, partitions: int, requests: int, acks: int = 1
) -> Figures:
    """Produces to the first `partitions` partitions in turn, on many connections with one request in flight on each."""
    crowd = _Crowd(broker.address, topic, payload, connections, partitions, acks)
    with crowd:
        cpu, start = cpu_seconds(*broker.pids), time.perf_counter()
        for fd in crowd.connections:
            crowd.send(fd)
        while len(crowd.latencies) < crowd.sent:
            for fd in crowd.wait():
                crowd.receive(fd)
                if crowd.sent < requests:
                    crowd.send(fd)
        seconds = time.perf_counter() - start
        cpu = cpu_seconds(*broker.pids) - cpu
    return figures_of(
        requests=crowd.sent,
        messages=crowd.sent * payload.count,
        size_bytes=crowd.sent * crowd.batch_size,
        seconds=seconds,
        cpu_seconds=cpu,
        latencies=crowd.latencies,
    )


def produce_at_rate(
    broker: Broker, topic: Topic, payload: Payload, *, connections: int, requests: int, requests_s: float
) -> list[float]:
    """Produces at a fixed rate, on the connections in turn, without waiting for responses; returns the latencies."""
    crowd = _Crowd(broker.address, topic, payload, connections, len(topic.ends), acks=1)
    with crowd:
        order = list(crowd.connections)
        start = time.perf_counter()
        while len(crowd.latencies) < requests:
            due = min(int((time.perf_counter() - start) * requests_s) + 1, requests)
            while crowd.sent < due:
                crowd.send(order[crowd.sent % len(order)])
            for fd in crowd.wait(seconds=0.001 if crowd.sent < requests else RESPONSE_SECONDS):
                crowd.receive(fd)
                while crowd.connections[fd].has_answer():
                    crowd.receive(fd)
    return crowd.latencies


class _Crowd:
    """Connections polled together: in a cluster to the leaders in turn, each for the partitions of its leader."""

    def __init__(
        self, address: Address, topic: Topic, payload: Payload, connections: int, partitions: int, acks: int
    ) -> None:
        batches = payload.batches()
        built = [produce_frame(version=PLAIN_VERSION, topic=topic.name, batch=batch, acks=acks) for batch in batches]
        self._buffers, self._partition_at = [frame for frame, _ in built], built[0][1]
        self._topic, self._count = topic, payload.count
        self.batch_size = len(batches[0])
        partitions_of: dict[Address, list[int]] = {}
        for partition in range(partitions):
            partitions_of.setdefault(topic.leader(partition, address), []).append(partition)
        turns = [(leader, cycle(led)) for leader, led in partitions_of.items()]
        self.connections: dict[int, Connection] = {}
        self._turns: dict[int, Iterator[int]] = {}
        for leader, turn in islice(cycle(turns), connections):
            connection = Connection(leader)
            self.connections[connection.fileno()] = connection
            self._turns[connection.fileno()] = turn
        self._poll = select.epoll()
        self._waiting: dict[int, deque[tuple[int, int, float]]] = {fd: deque() for fd in self.connections}
        self.latencies: list[float] = []
        self.sent = 0

    def __enter__(self) -> None:
        for fd in self.connections:
            self._poll.register(fd, select.EPOLLIN)

    def __exit__(self, *_: object) -> None:
        self._poll.close()
        for connection in self.connections.values():
            connection.close()

    def wait(self, seconds: float = RESPONSE_SECONDS) -> list[int]:
        ready = [fd for fd, _ in self._poll.poll(seconds)]
        if not ready and seconds == RESPONSE_SECONDS:
            raise TimeoutError(f"no response within {seconds:.0f} s")
        return ready

    def send(self, fd: int) -> None:
        index = self.sent
        buffer = self._buffers[index % len(self._buffers)]
        pack_int(buffer, CORRELATION_AT, index)
        partition = next(self._turns[fd])
        pack_int(buffer, self._partition_at, partition)
        self._waiting[fd].append((index, partition, time.perf_counter()))
        self.sent = index + 1
        self.connections[fd].send(buffer)

    def receive(self, fd: int) -> None:
        answer = read_produce_answer(PLAIN_VERSION, self.connections[fd].answer(), self._topic.name)
        index, partition, began = self._waiting[fd].popleft()
        self.latencies.append(time.perf_counter() - began)
        if answer.correlation_id != index or answer.error_code:
            raise WrongAnswer(f"Produce {index}: correlation id {answer.correlation_id}, error {answer.error_code}")
        # The broker chooses the order between connections, so base offsets are not checked; `verify` checks the end.
        self._topic.ends[partition] += self._count


def fetch(broker: Broker, topic: Topic, *, max_bytes: int, total_bytes: int, version: int) -> Figures:
    """Fetches from offset 0, with one request in flight, until `total_bytes` of complete batches were received."""
    latencies: list[float] = []
    messages = got = 0
    with Connection(topic.leader(0, broker.address)) as connection:
        cpu, start = cpu_seconds(*broker.pids), time.perf_counter()
        for size, offset, seconds in read_from_beginning(connection, topic, max_bytes=max_bytes, version=version):
            latencies.append(seconds)
            got += size
            messages = offset
            if got >= total_bytes:
                break
        else:
            raise WrongAnswer(f"The log ended after {got:,} bytes; {total_bytes:,} were written")
        elapsed = time.perf_counter() - start
        cpu = cpu_seconds(*broker.pids) - cpu
    return figures_of(
        requests=len(latencies),
        messages=messages,
        size_bytes=got,
        seconds=elapsed,
        cpu_seconds=cpu,
        latencies=latencies,
    )


def read_from_beginning(
    connection: Connection, topic: Topic, *, max_bytes: int, version: int
) -> Iterator[tuple[int, int, float]]:
    """Yields for each fetch the bytes of complete batches, the next offset and the seconds; stops at the log end."""
    buffer, offset_at = fetch_frame(version=version, topic=topic.name, max_bytes=max_bytes)
    offset = requests = 0
    while offset < topic.ends[0]:
        pack_int(buffer, CORRELATION_AT, requests)
        pack_long(buffer, offset_at, offset)
        began = time.perf_counter()
        connection.send(buffer)
        answer = connection.answer()
        seconds = time.perf_counter() - began
        correlation_id, code, position, size = read_fetch_answer(version, answer, topic.name)
        if correlation_id != requests or code:
            raise WrongAnswer(f"Fetch {requests}: correlation id {correlation_id}, error {code}")
        try:
            following, end = next_offset_after(answer, position, position + max(size, 0), offset)
        except ValueError as problem:
            raise WrongAnswer(f"Fetch at offset {offset}: {problem}") from problem
        if following == offset:
            raise WrongAnswer(f"Fetch at offset {offset} of {topic.ends[0]}: {size} bytes, but no complete batch")
        offset = following
        requests += 1
        yield end - position, offset, seconds
