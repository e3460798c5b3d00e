"""Measures what ACLs cost kbroker: a produce with many entries beside none, and loading the entries at the start.

The cost of a produce is measured twice: the decision alone, in this process, and the CPU time of two brokers. Only the
first has a limit: a broker also polls for the next request, which can hide a microsecond, and another virtual machine
can add one.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from benchmarks.broker_process import Broker, running_kbroker
from benchmarks.load import Payload, produce
from benchmarks.results import Measure, Results
from benchmarks.rounds import run_measures
from benchmarks.topics import WrongAnswer, create_topic, verify
from benchmarks.wire import make_payload
from kbroker.clock import SystemClock
from kbroker.config.authorizer import AuthorizerConfig
from kbroker.controller.trees.acl_znodes import ACL_PATHS, encode_entries, entries_path
from kbroker.controller.trees.embedded_tree import open_embedded_tree
from kbroker.controller.trees.tree import Create, ensure_path
from kbroker.names import METADATA_FILE
from kbroker.protocol.acl_codes import AclOperation, PermissionType, ResourceType
from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.entries import ANY_HOST, AclEntry, ResourcePattern
from kbroker.security.acls.index import AclIndex
from kbroker.server.access.acl_authorizer import AclAuthorizer
from kbroker.server.access.acls import open_acls
from kbroker.server.access.authorization import AllowAll, Authorizer
from kbroker.server.access.permissions import allows_repeated

__all__ = [
    "FULL",
    "QUICK",
    "Sizes",
    "entries_of_topics",
    "exact_cpu_seconds",
    "load_entries",
    "measure_decision",
    "run_acls",
    "write_entries",
]

COST_LIMIT_US = 1.0
LOAD_LIMIT_SECONDS = 1.0
PRINCIPAL = "User:ANONYMOUS"  # of clients without TLS and without a password
PEER = "127.0.0.1"
ENTRIES_OF_A_TOPIC = 5
NODES_AT_ONCE = 1_000
IN_FLIGHT = 50
AUTHORIZER = ("--set", "authorizer.class.name=kafka.security.authorizer.AclAuthorizer")


@dataclass(frozen=True, slots=True)
class Sizes:
    entries: int
    loaded: int
    """Entries that are loaded: once of as many topics, once of a fifth as many."""
    decisions: int
    pairs: int
    """Loads on each of the two brokers, in each round."""
    requests: int


FULL = Sizes(entries=10_000, loaded=100_000, decisions=200_000, pairs=8, requests=20_000)
QUICK = Sizes(entries=100, loaded=500, decisions=2_000, pairs=1, requests=1_000)


def run_acls(results: Results, *, only: str, rounds: int, quick: bool) -> None:
    sizes = QUICK if quick else FULL
    works = (
        ("ACLs: decision", measure_decision),
        ("ACLs: produce", measure_produce),
        ("ACLs: loading", measure_loading),
    )
    run_measures([(name, partial(work, sizes, rounds)) for name, work in works], results, only=only)


def entries_of_topics(topics: int, each: int = 1) -> dict[ResourcePattern, frozenset[AclEntry]]:
    """Returns entries of topics: the first of each lets the client do everything, the others are of other users."""
    principals = [PRINCIPAL, *(f"User:user-{number}" for number in range(each - 1))]
    entries = frozenset(AclEntry(name, ANY_HOST, AclOperation.ALL, PermissionType.ALLOW) for name in principals)
    return {ResourcePattern(ResourceType.TOPIC, f"topic-{number:06}"): entries for number in range(topics)}


# A decision


def measure_decision(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    """Asks as a Produce that is recognised by its bytes does, about all topics in turn."""
    entries = entries_of_topics(sizes.entries)
    index = AclIndex(AclRules())
    index.replace(entries)
    names = [pattern.name for pattern in entries]
    none, some = AllowAll(), AclAuthorizer(index, SystemClock())
    if not all(_ask(some, names)):
        raise WrongAnswer("An ACL allows the client to write, but the authorizer does not")
    laps = max(sizes.decisions // len(names), 1)
    more, forgotten = [], []
    for _ in range(rounds):
        without, remembered = _seconds(none, names, laps), _seconds(some, names, laps)
        more.append((remembered - without) / (laps * len(names)) * 1e6)
        index.replace({})  # a change, even of nothing, makes the index forget its decisions
        forgotten.append((_seconds(some, names, 1) - without / laps) / len(names) * 1e6)
    title = f"{sizes.entries:,} ACLs: more time for"
    yield Measure(f"{title} the decision of a produce", statistics.median(more), "µs", COST_LIMIT_US)
    yield Measure(f"{title} the first decision after a change of any ACL", statistics.median(forgotten), "µs")


def _ask(authorizer: Authorizer, names: Sequence[str]) -> list[bool]:
    # The same expression as in `repeated_produce.py`.
    context = cast(Any, SimpleNamespace(authorizer=authorizer))
    session = cast(Any, SimpleNamespace(principal=PRINCIPAL))
    slot = cast(Any, SimpleNamespace(connection=SimpleNamespace(peer_host=PEER)))
    write = AclOperation.WRITE
    return [context.authorizer.allows_all or allows_repeated(context, session, slot, write, name) for name in names]


def _seconds(authorizer: Authorizer, names: Sequence[str], laps: int) -> float:
    start = time.process_time()
    for _ in range(laps):
        _ask(authorizer, names)
    return time.process_time() - start


# A produce


class _Lane:
    """Broker with a topic to produce to."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._topic = create_topic(broker.address, name.encode())

    def cost_us(self, payload: Payload, requests: int) -> float:
        """Returns the CPU time of a request."""
        before = exact_cpu_seconds(self._broker)
        produce(self._broker, self._topic, payload, requests=requests, in_flight=IN_FLIGHT)
        return (exact_cpu_seconds(self._broker) - before) / requests * 1e6

    def verify(self) -> None:
        verify(self._broker.address, self._topic)


def measure_produce(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    """Produces to a broker without an authorizer and to one with ACLs, in turn, and compares neighbouring loads."""
    payload = make_payload(1, 200)
    entries = entries_of_topics(sizes.entries)
    name = next(iter(entries)).name
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
        write_entries(directory / "acls", entries)
        lanes = [
            _Lane(stack.enter_context(running_kbroker(directory / "none")), name),
            _Lane(stack.enter_context(running_kbroker(directory / "acls", *AUTHORIZER)), name),
        ]
        for lane in lanes:
            lane.cost_us(payload, sizes.requests)  # warms it
        costs = [[lane.cost_us(payload, sizes.requests) for lane in lanes] for _ in range(sizes.pairs * rounds)]
        for lane in lanes:
            lane.verify()
    none, some = (statistics.median(column) for column in zip(*costs, strict=True))
    more = statistics.median(with_acls - without for without, with_acls in costs)
    title = "CPU of a produce, 1x200B, 50 in flight"
    yield Measure(f"{title}, no authorizer", none, "µs")
    yield Measure(f"{title}, {sizes.entries:,} ACLs", some, "µs", note=f"{more:+.2f} µs between neighbouring loads")


def exact_cpu_seconds(broker: Broker) -> float:
    """Returns the CPU time of the threads that the process has: `cpu_seconds` counts in steps of 10 ms."""
    tasks = Path(f"/proc/{broker.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


# Loading


def measure_loading(sizes: Sizes, rounds: int) -> Iterator[Measure]:
    for each in (ENTRIES_OF_A_TOPIC, 1):
        yield from _measure_loading(sizes.loaded // each, each, rounds)


def _measure_loading(topics: int, each: int, rounds: int) -> Iterator[Measure]:
    """Loads entries as a starting broker does; and starts a broker with them, beside one without an authorizer."""
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as name:
        directory = Path(name)
        write_entries(directory / "acls", entries_of_topics(topics, each))
        loads = [trio.run(load_entries, directory / "acls", topics * each) for _ in range(rounds + 1)]
        with running_kbroker(directory / "none") as broker:
            without = broker.ready_seconds
        with running_kbroker(directory / "acls", *AUTHORIZER) as broker:
            ready = broker.ready_seconds
    title = f"{topics * each:,} ACLs of {topics:,} topics"
    yield Measure(f"{title}: loaded", statistics.median(loads[1:]), "s", LOAD_LIMIT_SECONDS)
    yield Measure(f"{title}: ready after the start", ready, "s", note=f"{without:.2f} s without an authorizer")


async def load_entries(data_dir: Path, expected: int) -> float:
    """Returns the seconds. Raises WrongAnswer if the data has another number of entries."""
    gc.collect()
    async with open_embedded_tree(data_dir / METADATA_FILE) as tree:
        start = time.perf_counter()
        acls = await open_acls(AuthorizerConfig(frozenset(), False), tree, SystemClock(), timeout_s=60)
        seconds = time.perf_counter() - start
    count = sum(1 for _ in acls.store.index.bindings())
    if count != expected:
        raise WrongAnswer(f"{count:,} ACLs were loaded, expected {expected:,}")
    return seconds


def write_entries(data_dir: Path, entries: Mapping[ResourcePattern, frozenset[AclEntry]]) -> None:
    """Writes entries into the metadata of a new broker, as the broker itself writes them."""
    data_dir.mkdir()
    trio.run(_write_entries, data_dir / METADATA_FILE, entries)


async def _write_entries(file: Path, entries: Mapping[ResourcePattern, frozenset[AclEntry]]) -> None:
    nodes = [Create(entries_path(pattern), encode_entries(own)) for pattern, own in entries.items()]
    async with open_embedded_tree(file) as tree:
        for path in ACL_PATHS:
            await ensure_path(tree, path)
        for start in range(0, len(nodes), NODES_AT_ONCE):
            await tree.multi(nodes[start : start + NODES_AT_ONCE])
