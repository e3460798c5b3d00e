"""Measures where kbroker could become slow: start, ten thousand partitions, a thousand connections, cold reads.

Each measure starts a new kbroker; Apache Kafka is not measured. Limits are absolute, or a ratio of two loads on the
same kbroker.
"""

from __future__ import annotations

import errno
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.broker_process import Broker, fresh_kbroker, resident_mb, running_kbroker
from benchmarks.connection import Address, Connection
from benchmarks.figures import percentile_ms
from benchmarks.load import Payload, produce, produce_at_rate, read_from_beginning
from benchmarks.open_files import allow_open_files
from benchmarks.results import Measure, Results
from benchmarks.rounds import run_measures
from benchmarks.topics import Topic, create_topic, verify
from benchmarks.wire import make_payload

__all__ = ["FULL", "QUICK", "Sizes", "cold_share", "drop_from_cache", "run_scale"]

READY_LIMIT_SECONDS = 0.5
IDLE_LIMIT_MB = 60
READY_AGAIN_LIMIT_SECONDS = 3.0
MANY_PARTITIONS_LIMIT_MB = 250
IN_TURN_LIMIT = 1.3
CONNECTIONS_LIMIT = 3.0
COLD_LIMIT = 2.0
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    partitions: int
    connections: int
    requests: int
    requests_s: float
    cold_bytes: int


FULL = Sizes(partitions=10_000, connections=1_000, requests=20_000, requests_s=4_000, cold_bytes=300 << 20)
QUICK = Sizes(partitions=500, connections=100, requests=1_000, requests_s=1_000, cold_bytes=30 << 20)


def run_scale(results: Results, *, only: str, rounds: int, quick: bool) -> None:
    sizes = QUICK if quick else FULL
    works = (
        ("start", measure_start),
        ("partitions", measure_partitions),
        ("connections", measure_connections),
        ("cold reads", measure_cold_reads),
    )
    run_measures([(name, partial(work, sizes, rounds)) for name, work in works], results, only=only, prefix="scale: ")


def measure_start(_: Sizes, rounds: int) -> Iterator[Measure]:
    """Measures time and memory of a start. The first start is not counted: it fills the system's caches."""
    seconds, resident = [], []
    for _round in range(rounds + 1):
        with fresh_kbroker() as (broker, _directory):
            seconds.append(broker.ready_seconds)
            time.sleep(0.5)  # includes work that kbroker defers until after the start
            resident.append(resident_mb(broker.pid))
    yield Measure("time to ready", statistics.median(seconds[1:]), "s", READY_LIMIT_SECONDS)
    yield Measure("resident when idle", statistics.median(resident[1:]), "MB", IDLE_LIMIT_MB)


def measure_partitions(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    many = f"{sizes.partitions:,} partitions"
    payload = make_payload(1, 200)
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as directory:
        data_dir = Path(directory) / "data"
        with running_kbroker(data_dir) as broker:
            wide = create_topic(broker.address, b"wide", sizes.partitions)
            produce(broker, wide, payload, requests=sizes.partitions, in_flight=50)
        with running_kbroker(data_dir) as broker:
            yield Measure(f"{many}: ready after a clean stop", broker.ready_seconds, "s", READY_AGAIN_LIMIT_SECONDS)
            verify(broker.address, wide)
            yield from _in_turn(broker, wide, rounds, many)
            yield Measure(
                f"{many}: resident after producing to all", resident_mb(broker.pid), "MB", MANY_PARTITIONS_LIMIT_MB
            )
            verify(broker.address, wide)


def _in_turn(broker: Broker, wide: Topic, rounds: int, many: str) -> Iterator[Measure]:
    """Compares producing to all partitions in turn with producing to one partition.

    The first round is not counted: it opens every partition. Before a large load, dirty pages of the previous load are
    written with sync, so that they do not slow it down. Small loads leave few dirty pages, and a sync of ten thousand
    clean files would slow them down.
    """
    one = create_topic(broker.address, b"one")
    for name, payload, in_flight, laps in (
        ("1x200B, 1 in flight", make_payload(1, 200), 1, 2),
        ("80x200B, 5 in flight", make_payload(80, 200), 5, 1),
    ):
        costs = []
        for _ in range(rounds + 1):
            rates = []
            for topic in (one, wide):
                if payload.count > 1:
                    os.sync()
                figures = produce(broker, topic, payload, requests=laps * len(wide.ends), in_flight=in_flight)
                rates.append(figures.requests_s)
            costs.append(rates[0] / rates[1])
        cost = statistics.median(costs[1:])
        yield Measure(f"{many} in turn compared with one, {name}: cost", cost, "x", IN_TURN_LIMIT)


def measure_connections(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    allow_open_files(sizes.connections + 200)
    payload = make_payload(1, 200)
    with fresh_kbroker() as (broker, _):
        topic = create_topic(broker.address, b"crowd")
        p99_few, p99_many, growth = _p99_alternating(broker, topic, payload, sizes, rounds)
        verify(broker.address, topic)
    load = f"{sizes.requests_s:,.0f} requests a second"
    yield Measure(f"p99 with 10 connections, {load}", p99_few, "ms")
    yield Measure(f"p99 with {sizes.connections:,} connections, {load}", p99_many, "ms")
    yield Measure(f"p99 of {sizes.connections:,} connections compared with 10", growth, "x", CONNECTIONS_LIMIT)


def _p99_alternating(
    broker: Broker, topic: Topic, payload: Payload, sizes: Sizes, rounds: int
) -> tuple[float, float, float]:
    def p99(connections: int) -> float:
        load = {"connections": connections, "requests": sizes.requests}
        return percentile_ms(produce_at_rate(broker, topic, payload, requests_s=sizes.requests_s, **load), 0.99)

    pairs = [(p99(10), p99(sizes.connections)) for _ in range(rounds + 1)][1:]
    few, many = (statistics.median(column) for column in zip(*pairs, strict=True))
    return few, many, statistics.median(high / low for low, high in pairs)


def measure_cold_reads(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    """Produces on ten connections at a steady rate, without and with a consumer whose reads go to the disk."""
    payload, stored_payload = make_payload(1, 200), make_payload(80, 200)
    seconds = sizes.requests / sizes.requests_s
    pairs, shares = [], []
    with fresh_kbroker() as (broker, directory), _other_process() as run_beside:
        topic = create_topic(broker.address, b"warm")
        cold = create_topic(broker.address, b"cold")
        batches = -(-sizes.cold_bytes // len(stored_payload.batches()[0]))
        produce(broker, cold, stored_payload, requests=batches, in_flight=5)

        def p99() -> float:
            load = {"connections": 10, "requests": sizes.requests}
            return percentile_ms(produce_at_rate(broker, topic, payload, requests_s=sizes.requests_s, **load), 0.99)

        for _ in range(rounds + 1):
            alone = p99()
            files = sorted(directory.glob("data/cold-0/*.log"))
            drop_from_cache(files)
            shares.append(cold_share(files))
            reading = run_beside(read_at_rate, broker.address, cold, sizes.cold_bytes / seconds)
            pairs.append((alone, p99()))
            reading()
        verify(broker.address, topic)
    alone, beside = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    growth = statistics.median(high / low for low, high in pairs[1:])
    note = f"{min(shares):.0%} of the data was not in the page cache"
    yield Measure("p99 of producers alone", alone, "ms")
    yield Measure("p99 of producers with a cold reader", beside, "ms")
    yield Measure("p99 with a cold reader compared with alone", growth, "x", COLD_LIMIT, note)


def read_at_rate(address: Address, topic: Topic, bytes_s: float) -> int:
    """Reads the topic to its end with 1 MB fetches, at most `bytes_s` bytes a second; returns the bytes read."""
    got = 0
    with Connection(address) as connection:
        start = time.perf_counter()
        for size, _, _ in read_from_beginning(connection, topic, max_bytes=1 << 20, version=12):
            got += size
            time.sleep(max(0.0, got / bytes_s - (time.perf_counter() - start)))
    return got


def drop_from_cache(files: Iterable[Path]) -> None:
    """Drops files from the page cache. The fsync is needed: dirty pages cannot be dropped."""
    for file in files:
        fd = os.open(file, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cold_share(files: Iterable[Path], samples: int = 64) -> float:
    """Returns the share of sampled pages that are not in the page cache."""
    cold = total = 0
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            pages = os.fstat(fd).st_size // PAGE
            # Backwards: a read of an uncached page may start the system's read-ahead of the following pages.
            for position in range((pages - 1) * PAGE, -1, -PAGE * max(1, pages // samples)):
                total += 1
                try:
                    os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT)
                except BlockingIOError:
                    cold += 1
                except OSError as problem:
                    if problem.errno != errno.EOPNOTSUPP:  # a file system in memory has no uncached pages
                        raise
        finally:
            os.close(fd)
    return cold / total if total else 0.0


@contextmanager
def _other_process() -> Iterator[Callable[..., Callable[[], object]]]:
    """Yields a function that starts work in another process: a thread would slow down the measured producers."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        yield lambda work, *arguments: pool.submit(work, *arguments).result
