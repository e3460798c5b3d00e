"""The cluster section: rows of the wire section on three kbrokers and on three brokers of Apache Kafka 4.1, in turn.

Both clusters run at the same time on this machine. Topics have three replicas, and every Produce waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks import wire
from benchmarks.broker_process import JavaMissing, resident_mb
from benchmarks.results import Measure, Results
from benchmarks.rounds import failure_of, log_progress
from benchmarks.three_brokers import BROKERS, find_kinds, running_kraft, running_with_zookeeper
from benchmarks.wire import Row, run_rows
from tools.jars import FetchFailed, MavenMissing

__all__ = ["ROWS", "run_cluster"]

REPLICAS = len(BROKERS)
SETTINGS = {"min.insync.replicas": 2}
CPU_LIMIT = 0.7
# Row of the wire section -> floor here.
FLOORS = {
    "produce 1x100B, 1 in flight": 1.2,
    "produce 1x200B, 50 in flight": 6.0,
    "produce 50x200B": 2.0,
    "produce 80x200B (16 KB)": 2.0,
    "produce 1000x100B": 1.5,
    "produce 1000x1000B (1 MB)": 1.1,
    "modern 1x200B, acks=all, idempotent, v11": 2.0,
    "modern 80x200B, acks=all, idempotent, v11": 2.0,
    "100 connections, 1x200B, 1 in flight": 1.2,
    "10 connections over 100 partitions, 80x200B": 1.1,
    "fetch 64 KB": 1.2,
    "fetch 1 MB": 1.0,
    "fetch 8 MB": 1.0,
}
ROWS = tuple(
    replace(row, name=f"cluster: {row.name}", floor=FLOORS[row.name], cpu_limit=CPU_LIMIT)
    for row in wire.ROWS
    if row.name in FLOORS
)


def run_cluster(results: Results, *, only: str, rounds: int, quick: bool) -> None:
    rows = [row for row in ROWS if only in row.name]
    if not rows:
        return
    try:
        failure = failure_of(partial(_run, rows, results, rounds, quick))
    except (JavaMissing, MavenMissing, FetchFailed) as problem:
        log_progress(f"Skipped cluster: it needs a ZooKeeper and Apache Kafka: {problem}")
        return
    if failure is not None:
        results.measures.append(Measure("cluster: start of both clusters", None, "", failure=failure))


def _run(rows: Sequence[Row], results: Results, rounds: int, quick: bool) -> None:
    kbroker, _ = find_kinds()
    with ExitStack() as stack:
        log_progress("Starting three brokers of Apache Kafka 4.1, a ZooKeeper and three kbrokers …")
        rival = stack.enter_context(running_kraft(SETTINGS)).as_broker()
        kbrokers, _address = stack.enter_context(running_with_zookeeper(kbroker, SETTINGS))
        subject = kbrokers.as_broker()
        run_rows(rows, subject, rival, results, rounds=rounds, quick=quick, replicas=REPLICAS)
        for name, broker in (("kbroker", subject), ("Apache Kafka 4.1", rival)):
            resident = resident_mb(*broker.pids)
            results.measures.append(Measure(f"resident after the cluster rows, three of {name}", resident, "MB"))
