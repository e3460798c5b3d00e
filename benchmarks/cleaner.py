"""Measures the log cleaner of both brokers: how fast it compacts, and the latency of producers meanwhile.

Each round writes a topic of many segments with few keys, without compaction. Then it changes the topic's
cleanup.policy to compact, and waits until only the newest record of each key is left. Another topic is produced to at
a steady rate, alone and beside the cleaner.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.connection import Address, call
from benchmarks.figures import Figures, figures_of, percentile_ms
from benchmarks.frames import (
    alter_configs_frame,
    describe_log_dirs_frame,
    make_records,
    read_alter_configs_answer,
    read_describe_log_dirs_answer,
)
from benchmarks.load import Payload, produce, produce_at_rate
from benchmarks.results import Comparison, Measure, Results
from benchmarks.rounds import run_in_turn
from benchmarks.topics import Topic, WrongAnswer, create_topic, verify
from benchmarks.wire import make_payload

__all__ = ["FULL", "QUICK", "ROWS", "CleanerRow", "Sizes", "run_cleaner"]

TOPIC, BROKER = 2, 4
BACKOFF_MS = 100
P99_LIMIT = 1.5
TIMEOUT_SECONDS = 180.0
POLL_SECONDS = 0.02
BATCH_BYTES = 16_384
KEPT_SHARE = 1.3  # of the bytes of one record for each key: batches keep their headers


@dataclass(frozen=True, slots=True)
class Sizes:
    segments: int
    segment_bytes: int
    keys: int
    requests_s: float
    seconds_alone: int


FULL = Sizes(segments=6, segment_bytes=50_000_000, keys=100_000, requests_s=1_000, seconds_alone=5)
QUICK = Sizes(segments=3, segment_bytes=4_000_000, keys=1_000, requests_s=200, seconds_alone=1)


@dataclass(frozen=True, slots=True)
class CleanerRow:
    record_bytes: int
    floor: float = 1.0

    def name(self, sizes: Sizes) -> str:
        return f"cleaner {self.record_bytes}B, {sizes.keys:,} keys"


ROWS = (CleanerRow(100), CleanerRow(1000))


class CleanerLane:
    """Broker with a topic for the producers beside the cleaner."""

    def __init__(self, broker: Broker, run_id: str, sizes: Sizes) -> None:
        self.broker = broker
        self._run_id = run_id
        self._sizes = sizes
        self._rounds = 0
        self._payload = make_payload(1, 200)
        self._beside = create_topic(broker.address, f"bench-beside-{run_id}".encode())
        self.p99_growth: list[float] = []
        alter(broker.address, BROKER, b"", {b"log.cleaner.backoff.ms": b"%d" % BACKOFF_MS})

    def run(self, row: CleanerRow, pool: ProcessPoolExecutor) -> Figures:
        """Returns the figures of one compaction. The rate counts the bytes before it."""
        address, sizes = self.broker.address, self._sizes
        self._rounds += 1
        topic = self._fill(f"bench-clean-{self._run_id}-{row.record_bytes}-{self._rounds}".encode(), row)
        alone = self._p99_alone()
        size = size_of(address, topic.name)
        kept = sizes.keys * (row.record_bytes + 20) * KEPT_SHARE + 2 * BATCH_BYTES
        cpu = cpu_seconds(self.broker.pid)
        policy = {b"cleanup.policy": b"compact", b"min.cleanable.dirty.ratio": b"0.01"}
        cleaning: Future[float] = pool.submit(compact, address, topic.name, policy, kept)
        latencies = self._latencies(cleaning.done)
        seconds = cleaning.result()
        self.p99_growth.append(percentile_ms(latencies, 0.99) / alone)
        cpu = cpu_seconds(self.broker.pid) - cpu
        verify(address, self._beside)
        return figures_of(
            requests=1, messages=topic.ends[0], size_bytes=size, seconds=seconds, cpu_seconds=cpu, latencies=latencies
        )

    def _fill(self, name: bytes, row: CleanerRow) -> Topic:
        """Writes a little more than the closed segments: the active segment is never compacted."""
        sizes = self._sizes
        configs = {
            b"cleanup.policy": b"delete",
            b"segment.bytes": b"%d" % sizes.segment_bytes,
            b"file.delete.delay.ms": b"1000",
        }
        topic = create_topic(self.broker.address, name, configs=configs)
        payload = keyed_payload(row.record_bytes, sizes.keys)
        size = len(payload.batches()[0])
        # Each segment ends with the last batch that fits into it.
        requests = sizes.segments * (sizes.segment_bytes // size) + 1
        produce(self.broker, topic, payload, requests=requests, in_flight=5)
        return topic

    def _p99_alone(self) -> float:
        latencies = [latency for _ in range(self._sizes.seconds_alone) for latency in self._one_second()]
        return percentile_ms(latencies, 0.99)

    def _latencies(self, is_over: Callable[[], bool]) -> list[float]:
        latencies: list[float] = []
        while not is_over():
            latencies += self._one_second()
        return latencies or self._one_second()

    def _one_second(self) -> list[float]:
        requests_s = self._sizes.requests_s
        return produce_at_rate(
            self.broker, self._beside, self._payload, connections=10, requests=int(requests_s), requests_s=requests_s
        )


def keyed_payload(record_bytes: int, keys: int) -> Payload:
    """Returns batches of about 16 KB whose records have random keys of a fixed length, so that all are equally long."""
    chance = random.Random(7)
    count = max(BATCH_BYTES // record_bytes, 1)
    variants = []
    for _ in range(max(keys // count, 1)):
        drawn = [b"key-%08d" % chance.randrange(keys) for _ in range(count)]
        variants.append(make_records(count, record_bytes, keys=drawn))
    return Payload(count, variants)


def compact(address: Address, topic: bytes, policy: Mapping[bytes, bytes], kept_bytes: float) -> float:
    """Turns compaction on, and returns the seconds until the topic has at most `kept_bytes`."""
    start = time.perf_counter()
    alter(address, TOPIC, topic, policy)
    while size_of(address, topic) > kept_bytes:
        if time.perf_counter() - start > TIMEOUT_SECONDS:
            raise WrongAnswer(f"{topic.decode()} has {size_of(address, topic):,} bytes, expected {kept_bytes:,.0f}")
        time.sleep(POLL_SECONDS)
    return time.perf_counter() - start


def alter(address: Address, kind: int, name: bytes, configs: Mapping[bytes, bytes]) -> None:
    code = read_alter_configs_answer(call(address, alter_configs_frame(kind, name, configs)))
    if code:
        raise WrongAnswer(f"IncrementalAlterConfigs of {name.decode()}: error {code}")


def size_of(address: Address, topic: bytes) -> int:
    return read_describe_log_dirs_answer(call(address, describe_log_dirs_frame(topic)), topic)


def run_cleaner(
    subject: Broker, rival: Broker | None, results: Results, *, only: str, rounds: int, quick: bool
) -> None:
    sizes = QUICK if quick else FULL
    rows = [row for row in ROWS if only in row.name(sizes)]
    if not rows:
        return
    run_id = os.urandom(4).hex()
    lanes = [CleanerLane(broker, run_id, sizes) for broker in (subject, rival) if broker is not None]
    # Another process watches the size: a thread would slow down the measured producers.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for row in rows:
            works = [partial(lane.run, row, pool) for lane in lanes]
            medians, failure = run_in_turn(row.name(sizes), works, rounds=rounds)
            ours, theirs = [*medians, None][:2]
            results.comparisons.append(Comparison(row.name(sizes), "MB/s", ours, theirs, row.floor, failure=failure))
            _add_p99(results, row.name(sizes), lanes)


def _add_p99(results: Results, name: str, lanes: Sequence[CleanerLane]) -> None:
    for broker, lane, limit in zip(("kbroker", "Apache Kafka 4.1"), lanes, (P99_LIMIT, None), strict=False):
        if lane.p99_growth:
            growth = statistics.median(lane.p99_growth[1:] or lane.p99_growth)  # the first round warms the broker
            results.measures.append(
                Measure(f"{name}: p99 of producers compared with alone, {broker}", growth, "x", limit)
            )
        lane.p99_growth.clear()
