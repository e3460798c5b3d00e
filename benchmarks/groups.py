"""Rows of consumer groups: joins of a large group, heartbeats and commits on both brokers; loading a million offsets.

Loading is measured on kbroker only, against absolute limits: other clients must not wait for it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.broker_process import Broker, resident_mb, running_kbroker
from benchmarks.connection import Address, Connection
from benchmarks.figures import Figures, percentile_ms
from benchmarks.group_frames import (
    api_versions_frame,
    list_groups_frame,
    read_api_versions_answer,
    read_error_after_throttle,
)
from benchmarks.group_load import (
    ClassicMembers,
    ConsumerMembers,
    Members,
    await_coordinator,
    check_committed,
    commit,
    commit_many,
    connected,
    heartbeat,
    serves_consumer_protocol,
    settle,
)
from benchmarks.open_files import allow_open_files
from benchmarks.results import Comparison, Measure, Results
from benchmarks.rounds import failure_of, log_progress, run_in_turn
from benchmarks.topics import Topic, WrongAnswer, create_topic

__all__ = ["FULL", "QUICK", "Sizes", "run_groups", "run_loading"]

SETTLE_FLOOR = 0.5  # at most twice Apache Kafka's time
HEARTBEAT_FLOOR = 1.2
COMMIT_FLOOR = 2.0
COMMITS_AT_LEAST = 8_000
COMMITS_IN_FLIGHT = 5
LOAD_LIMIT_SECONDS = 10.0
PAUSE_LIMIT_MS = 50.0
PING_SECONDS = 0.001
PINGS_PER_CHECK = 20
LOAD_TIMEOUT_SECONDS = 120.0
COORDINATOR_LOAD_IN_PROGRESS = 14


@dataclass(frozen=True, slots=True)
class Sizes:
    members: int
    partitions: int
    groups_of_members: int
    """Number of groups for the heartbeats' connections, so that they use several coordinator shards."""
    connections: int
    heartbeats: int
    commits: int
    groups_with_offsets: int
    offsets_of_a_group: int


FULL = Sizes(500, 1_000, 20, 1_000, 40_000, 20_000, 1_000, 1_000)
QUICK = Sizes(20, 40, 4, 40, 400, 400, 20, 200)


class Lane:
    """Broker with the topic of this run."""

    def __init__(self, broker: Broker, run_id: bytes, sizes: Sizes) -> None:
        self.broker = broker
        self._sizes = sizes
        self._run_id = run_id
        self._number = 0
        self._topic = create_topic(broker.address, b"bench-groups-" + run_id, sizes.partitions)

    def _new_group(self) -> bytes:
        self._number += 1
        group = b"bench-%b-%d" % (self._run_id, self._number)
        await_coordinator(self.broker.address, group)
        return group

    def settle(self, kind: Callable[[bytes, Topic, int], Members]) -> Figures:
        count = self._sizes.members
        with connected(self.broker.address, count) as connections:
            return settle(self.broker, connections, kind(self._new_group(), self._topic, count))

    def heartbeat(self) -> Figures:
        sizes = self._sizes
        size = sizes.connections // sizes.groups_of_members
        frames: list[bytearray] = []
        with connected(self.broker.address, sizes.connections) as connections:
            for start in range(0, sizes.connections, size):
                members = ClassicMembers(self._new_group(), self._topic, size)
                settle(self.broker, connections[start : start + size], members)
                frames += [members.heartbeat(index) for index in range(size)]
            return heartbeat(self.broker, connections, frames, requests=sizes.heartbeats)

    def commit(self) -> Figures:
        group = self._new_group()
        with connected(self.broker.address, 1) as connections:
            members = ClassicMembers(group, self._topic, 1)
            settle(self.broker, connections, members)
            return commit(
                self.broker,
                group,
                self._topic,
                requests=self._sizes.commits,
                in_flight=COMMITS_IN_FLIGHT,
                generation=members.generations[0],
                member_id=members.member_ids[0],
            )


def run_groups(subject: Broker, rival: Broker | None, results: Results, *, only: str, rounds: int, quick: bool) -> None:
    sizes = QUICK if quick else FULL
    members = f"{sizes.members} members on {sizes.partitions:,} partitions settle"
    rows: list[tuple[str, str, float, float | None, Callable[[Lane], Figures]]] = [
        (f"{members}, classic", "s", SETTLE_FLOOR, None, lambda lane: lane.settle(ClassicMembers)),
        (f"{members}, KIP-848", "s", SETTLE_FLOOR, None, lambda lane: lane.settle(ConsumerMembers)),
        (f"heartbeats, {sizes.connections:,} connections", "req/s", HEARTBEAT_FLOOR, None, Lane.heartbeat),
        (f"OffsetCommit, {COMMITS_IN_FLIGHT} in flight", "req/s", COMMIT_FLOOR, COMMITS_AT_LEAST, Lane.commit),
    ]
    rows = [row for row in rows if only in row[0]]
    if not rows:
        return
    allow_open_files(sizes.connections + 200)
    run_id = os.urandom(4).hex().encode()
    lanes = [Lane(broker, run_id, sizes) for broker in (subject, rival) if broker is not None]
    for name, unit, floor, at_least, work in rows:
        results.comparisons.append(_compare(name, unit, floor, at_least, work, lanes, rounds=rounds, quick=quick))


def _compare(
    name: str,
    unit: str,
    floor: float,
    at_least: float | None,
    work: Callable[[Lane], Figures],
    lanes: Sequence[Lane],
    *,
    rounds: int,
    quick: bool,
) -> Comparison:
    if "KIP-848" in name and not all(serves_consumer_protocol(lane.broker.address) for lane in lanes):
        return Comparison(name, unit, None, None, floor, note="not served")
    medians, failure = run_in_turn(name, [partial(work, lane) for lane in lanes], rounds=rounds)
    subject, rival = [*medians, None][:2]
    return Comparison(name, unit, subject, rival, floor, failure=failure, at_least=None if quick else at_least)


def run_loading(results: Results, *, only: str, quick: bool) -> None:
    """Measures a start with many committed offsets while another client sends a request every millisecond."""
    sizes = QUICK if quick else FULL
    name = f"{sizes.groups_with_offsets * sizes.offsets_of_a_group:,} committed offsets"
    if only not in f"{name}: loaded":
        return
    log_progress(f"{name} …")
    failure = failure_of(lambda: results.measures.extend(_measure_loading(sizes, name)))
    if failure is not None:
        results.measures.append(Measure(name, None, "", failure=failure))


def _measure_loading(sizes: Sizes, name: str) -> Iterator[Measure]:
    groups = [b"bench-%d" % number for number in range(sizes.groups_with_offsets)]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
        data_dir, pauses_file = directory / "data", directory / "pauses.json"
        with running_kbroker(data_dir) as broker:
            topic = create_topic(broker.address, b"offsets", sizes.offsets_of_a_group)
            await_coordinator(broker.address, groups[0])
            commit_many(broker.address, groups, topic, offset=7)
        with running_kbroker(data_dir, collector_pauses=pauses_file) as broker:
            seconds, gaps = ping_while_loading(broker.address)
            for group in (groups[0], groups[-1]):
                check_committed(broker.address, group, topic, dict.fromkeys(range(sizes.offsets_of_a_group), 7))
            resident = resident_mb(broker.pid)
        pauses = [seconds * 1e3 for seconds in json.loads(pauses_file.read_text())]
    yield Measure(f"{name}: loaded after the socket accepts", seconds, "s", LOAD_LIMIT_SECONDS)
    note = f"median of {len(gaps):,} pings {percentile_ms(gaps, 0.5):.2f} ms, p99 {percentile_ms(gaps, 0.99):.2f} ms"
    yield Measure(f"{name}: longest wait of another client", max(gaps) * 1e3, "ms", PAUSE_LIMIT_MS, note)
    note = f"{len(pauses)} pauses, {sum(pauses):,.0f} ms in total"
    yield Measure(f"{name}: longest pause of the garbage collector", max(pauses, default=0.0), "ms", None, note)
    yield Measure(f"{name}: resident when loaded", resident, "MB")


def ping_while_loading(address: Address) -> tuple[float, list[float]]:
    """Returns the seconds until all groups are loaded, and the latency of each ping."""
    gaps: list[float] = []
    ping, check = api_versions_frame(), list_groups_frame()
    now = time.perf_counter
    start = now()
    with Connection(address) as pinging, Connection(address) as checking:
        while True:
            for _ in range(PINGS_PER_CHECK):
                began = now()
                pinging.send(ping)
                read_api_versions_answer(pinging.answer())
                gaps.append(now() - began)
                time.sleep(PING_SECONDS)
            checking.send(check)
            code = read_error_after_throttle(checking.answer())
            if not code:
                return now() - start, gaps
            if code != COORDINATOR_LOAD_IN_PROGRESS or now() - start > LOAD_TIMEOUT_SECONDS:
                raise WrongAnswer(f"ListGroups during the load: error {code}")
