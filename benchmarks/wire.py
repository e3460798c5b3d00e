"""Rows of the wire section, their floors, and their runs on both brokers in turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.broker_process import Broker, resident_mb
from benchmarks.figures import Figures
from benchmarks.frames import make_records
from benchmarks.load import Payload, fetch, produce, produce_on_many
from benchmarks.results import Comparison, Measure, Results
from benchmarks.rounds import failure_of, run_in_turn
from benchmarks.topics import Topic, create_topic, log_end_offsets, verify
from kbroker.protocol.compression import Codec, compress

__all__ = [
    "QUICK_DIVISOR",
    "ROWS",
    "FetchLoad",
    "ProduceLoad",
    "Row",
    "SpreadLoad",
    "make_payload",
    "run_rows",
    "run_wire",
]

WARMING_REQUESTS = 30_000
WIDE_PARTITIONS = 100
RESIDENT_LIMIT_MB = 120
QUICK_DIVISOR = 10
# Records and record size of the stored batches for the fetch rows: a full batch of a default producer.
STORED_BATCH = (80, 200)


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    """Produce on one connection to one partition."""

    count: int
    size: int
    in_flight: int
    requests: int
    version: int = 7
    acks: int = 1
    idempotent: bool = False
    codec: Codec = Codec.NONE


@dataclass(frozen=True, slots=True)
class SpreadLoad:
    """Produce on many connections, with one request in flight on each."""

    count: int
    size: int
    connections: int
    partitions: int
    requests: int


@dataclass(frozen=True, slots=True)
class FetchLoad:
    """Fetch a topic from its beginning on one connection."""

    max_bytes: int
    total_bytes: int
    version: int


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    floor: float
    load: ProduceLoad | SpreadLoad | FetchLoad
    cpu_limit: float | None = None


ROWS = (
    Row("produce 1x100B, 1 in flight", "req/s", 1.4, ProduceLoad(1, 100, 1, 4_000)),
    Row("produce 1x200B, 50 in flight", "req/s", 4.0, ProduceLoad(1, 200, 50, 20_000)),
    Row("produce 50x200B", "msg/s", 2.0, ProduceLoad(50, 200, 5, 8_000)),
    Row("produce 80x200B (16 KB)", "msg/s", 2.0, ProduceLoad(80, 200, 5, 8_000)),
    Row("produce 1000x100B", "msg/s", 1.3, ProduceLoad(1000, 100, 5, 2_000)),
    Row("produce 1000x1000B (1 MB)", "MB/s", 1.2, ProduceLoad(1000, 1000, 5, 400)),
    Row("produce 80x200B (16 KB), lz4", "msg/s", 1.5, ProduceLoad(80, 200, 5, 8_000, codec=Codec.LZ4)),
    Row("produce 80x200B (16 KB), zstd", "msg/s", 1.5, ProduceLoad(80, 200, 5, 8_000, codec=Codec.ZSTD)),
    Row("produce 1000x100B, lz4", "msg/s", 1.5, ProduceLoad(1000, 100, 5, 2_000, codec=Codec.LZ4)),
    Row("produce 1000x100B, zstd", "msg/s", 1.5, ProduceLoad(1000, 100, 5, 2_000, codec=Codec.ZSTD)),
    Row("modern 1x200B, acks=all, idempotent, v11", "req/s", 2.0, ProduceLoad(1, 200, 5, 4_000, 11, -1, True)),
    Row("modern 80x200B, acks=all, idempotent, v11", "msg/s", 2.0, ProduceLoad(80, 200, 5, 1_000, 11, -1, True)),
    Row("100 connections, 1x200B, 1 in flight", "req/s", 1.2, SpreadLoad(1, 200, 100, 1, 20_000), cpu_limit=0.75),
    Row(
        "10 connections over 100 partitions, 80x200B",
        "msg/s",
        0.9,
        SpreadLoad(80, 200, 10, WIDE_PARTITIONS, 8_000),
        cpu_limit=0.75,
    ),
    Row("fetch 64 KB", "MB/s", 1.2, FetchLoad(1 << 16, 100 << 20, 4)),
    Row("fetch 1 MB", "MB/s", 1.0, FetchLoad(1 << 20, 600 << 20, 4)),
    Row("fetch 8 MB", "MB/s", 0.95, FetchLoad(8 << 20, 600 << 20, 4)),
    Row("v12 fetch 64 KB", "MB/s", 1.2, FetchLoad(1 << 16, 100 << 20, 12)),
    Row("v12 fetch 1 MB", "MB/s", 1.0, FetchLoad(1 << 20, 600 << 20, 12)),
)


class Lane:
    """Broker with the topics of this run."""

    def __init__(self, broker: Broker, run_id: bytes) -> None:
        self.broker = broker
        self.narrow = create_topic(broker.address, b"bench-" + run_id)
        self.wide = create_topic(broker.address, b"bench-wide-" + run_id, WIDE_PARTITIONS)
        self._stored_name = b"bench-stored-" + run_id
        self._stored: Topic | None = None
        self._stored_bytes = 0

    def warm(self, payload: Payload) -> None:
        produce(self.broker, self.narrow, payload, requests=WARMING_REQUESTS, in_flight=50)

    def run(self, load: ProduceLoad | SpreadLoad | FetchLoad, payload: Payload, divisor: int) -> Figures:
        if isinstance(load, FetchLoad):
            return self._fetch(load, payload, divisor)
        if isinstance(load, SpreadLoad):
            return produce_on_many(
                self.broker,
                self.wide,
                payload,
                connections=load.connections,
                partitions=load.partitions,
                requests=load.requests // divisor,
            )
        return produce(
            self.broker,
            self.narrow,
            payload,
            requests=load.requests // divisor,
            in_flight=load.in_flight,
            version=load.version,
            acks=load.acks,
            idempotent=load.idempotent,
        )

    def _fetch(self, load: FetchLoad, payload: Payload, divisor: int) -> Figures:
        total = load.total_bytes // divisor
        stored = self._store(total, payload)
        return fetch(self.broker, stored, max_bytes=load.max_bytes, total_bytes=total, version=load.version)

    def _store(self, total: int, payload: Payload) -> Topic:
        """Returns the topic for fetches, filled with at least `total` bytes."""
        if self._stored is None:
            self._stored = create_topic(self.broker.address, self._stored_name)
        size = len(payload.batches()[0])
        missing = -(-(total - self._stored_bytes) // size)
        if missing > 0:
            produce(self.broker, self._stored, payload, requests=missing, in_flight=5)
            self._stored_bytes += missing * size
        return self._stored

    def verify(self) -> None:
        for topic in (self.narrow, self.wide, self._stored):
            if topic is not None:
                verify(self.broker.address, topic)

    def resynchronise(self) -> None:
        """Sets the expected end offsets to the current ones, so that one wrong response does not fail later rows."""
        for topic in (self.narrow, self.wide, self._stored):
            if topic is not None:
                topic.ends[:] = log_end_offsets(self.broker.address, topic)


def make_payload(count: int, size: int, codec: Codec = Codec.NONE) -> Payload:
    """Returns batches of random values, or with a codec of compressed text."""
    variants = [make_records(count, size, is_text=bool(codec)) for _ in range(16 if count * size < 50_000 else 4)]
    return Payload(count, [compress(codec, records) for records in variants], codec)


def run_wire(subject: Broker, rival: Broker | None, results: Results, *, only: str, rounds: int, quick: bool) -> None:
    run_rows([row for row in ROWS if only in row.name], subject, rival, results, rounds=rounds, quick=quick)
    for name, broker, limit in (("kbroker", subject, RESIDENT_LIMIT_MB), ("Apache Kafka 4.1", rival, None)):
        if broker is not None and broker.pid is not None:
            resident = resident_mb(broker.pid)
            results.measures.append(Measure(f"resident after the wire rows, {name}", resident, "MB", limit))


def run_rows(
    rows: Sequence[Row], subject: Broker, rival: Broker | None, results: Results, *, rounds: int, quick: bool
) -> None:
    """Runs rows on new topics of both brokers, and checks at the end that no record was lost."""
    divisor = QUICK_DIVISOR if quick else 1
    run_id = os.urandom(4).hex().encode()
    lanes = [Lane(broker, run_id) for broker in (subject, rival) if broker is not None]
    if rows and not quick:
        payload = make_payload(1, 200)
        for lane in lanes:
            lane.warm(payload)
    for row in rows:
        results.comparisons.append(_compare(row, lanes, rounds, divisor))
    _verify(lanes, results)


def _compare(row: Row, lanes: Sequence[Lane], rounds: int, divisor: int) -> Comparison:
    load = row.load
    if isinstance(load, FetchLoad):
        payload = make_payload(*STORED_BATCH)
    else:
        payload = make_payload(load.count, load.size, load.codec if isinstance(load, ProduceLoad) else Codec.NONE)
    works = [partial(lane.run, load, payload, divisor) for lane in lanes]
    medians, failure = run_in_turn(row.name, works, rounds=rounds)
    if failure is not None:
        for lane in lanes:
            failure_of(lane.resynchronise)
    subject, rival = [*medians, None][:2]
    return Comparison(row.name, row.unit, subject, rival, row.floor, row.cpu_limit, failure)


def _verify(lanes: Sequence[Lane], results: Results) -> None:
    for lane in lanes:
        failure = failure_of(lane.verify)
        if failure is not None:
            name = f"acknowledged records on {lane.broker.bootstrap}"
            results.measures.append(Measure(name, None, "", failure=failure))
