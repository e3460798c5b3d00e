"""Measures what hostile clients cost others: the longest wait of a small request, and the broker's memory.

Apache Kafka is not measured. All attacks hit one kbroker, one after the other.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks.attacks import ATTACKS, Attack, Onslaught
from benchmarks.broker_process import Broker, fresh_kbroker
from benchmarks.canary import Canary, PeakMemory, canary_beside
from benchmarks.connection import Address
from benchmarks.results import Measure, Results
from benchmarks.rounds import failure_of, log_progress
from benchmarks.topics import WrongAnswer, create_topic
from compat_tests.process import free_ports

__all__ = ["run_hostile"]

WAIT_LIMIT_MS = 100.0
RISE_LIMIT_MB = 512.0
"""`queued.max.request.bytes` (256 MB), and as much for one response."""
REST_LIMIT_MB = 64.0
SETTLING_SECONDS = 5.0
ALONE_SECONDS = 2.0
SLOW_HTTP_CLIENTS = 64
HEALTH_CHECKS = 20
HEALTH = "the health page beside 64 slow HTTP clients"


def run_hostile(results: Results, *, only: str, quick: bool) -> None:
    attacks = [attack for attack in ATTACKS if only in attack.name]
    if attacks:
        failure = failure_of(partial(_run_attacks, attacks, results, quick=quick))
        if failure is not None:
            results.measures.append(Measure("hostile", None, "", failure=failure))
    if only in HEALTH:
        failure = failure_of(partial(_check_health, results))
        if failure is not None:
            results.measures.append(Measure(HEALTH, None, "", failure=failure))


def _run_attacks(attacks: list[Attack], results: Results, *, quick: bool) -> None:
    with fresh_kbroker() as (broker, directory):
        topic = create_topic(broker.address, b"canary")
        with canary_beside(broker.address, topic.name) as canary:
            time.sleep(ALONE_SECONDS)
            wait = canary.pop_longest_wait()
            first = PeakMemory(_pid(broker)).resident_mb
            results.measures.append(Measure("no attack: longest wait of another client", wait * 1e3, "ms"))
            for attack in attacks:
                _measure(broker, canary, attack, results, quick=quick)
                raise_traceback((directory / "data.log").read_text(errors="replace"), attack.name)
            rest = PeakMemory(_pid(broker)).resident_mb
        results.measures.append(Measure("all attacks: memory at the end", rest, "MB", note=f"{first:,.0f} MB before"))


def _measure(broker: Broker, canary: Canary, attack: Attack, results: Results, *, quick: bool) -> None:
    log_progress(f"hostile: {attack.name} …")
    onslaught = attack.prepare(broker.address, attack.quick if quick else attack.count)
    time.sleep(0.1 if quick else SETTLING_SECONDS)
    memory = PeakMemory(_pid(broker))
    before = memory.resident_mb
    memory.reset()
    canary.pop_longest_wait()
    start = time.perf_counter()
    remarks: list[str] = []
    failure = failure_of(lambda: remarks.append(_got(onslaught)))
    seconds = time.perf_counter() - start
    time.sleep(0.1 if quick else SETTLING_SECONDS)
    # The wait includes what the broker does after its response: it frees the request.
    wait, peak, after = canary.pop_longest_wait(), memory.peak_mb, memory.resident_mb
    name = attack.name
    log_progress(
        f"  {seconds:,.1f} s, longest wait {wait * 1e3:,.0f} ms, "
        f"memory before {before:,.0f} MB, peak {peak:,.0f} MB, after {after:,.0f} MB"
    )
    results.measures += [
        Measure(
            f"{name}: longest wait of another client",
            wait * 1e3,
            "ms",
            WAIT_LIMIT_MS,
            note=", ".join([f"the attack took {seconds:,.1f} s", *remarks]),
            failure=failure and f"{name}: {failure}",
        ),
        Measure(f"{name}: rise of memory", peak - before, "MB", RISE_LIMIT_MB, note=f"from {before:,.0f} MB"),
        Measure(f"{name}: rise that is left after {SETTLING_SECONDS:,.0f} s", after - before, "MB", REST_LIMIT_MB),
    ]


def _got(onslaught: Onslaught) -> str:
    try:
        return f"got {onslaught() / 1e6:,.1f} MB"
    except TimeoutError as problem:  # a timing never causes a failure
        return str(problem)


def _pid(broker: Broker) -> int:
    assert broker.pid is not None
    return broker.pid


def raise_traceback(log: str, name: str) -> None:
    """Raises WrongAnswer if the broker has logged a traceback."""
    if "Traceback" in log:
        raise WrongAnswer(f"{name}: the broker logged a traceback:\n{log[log.index('Traceback') :][:3000]}")


def _check_health(results: Results) -> None:
    log_progress(f"hostile: {HEALTH} …")
    (port,) = free_ports(1)
    address = ("127.0.0.1", port)
    with fresh_kbroker("--metrics-listen", f"127.0.0.1:{port}"), ExitStack() as stack:
        for _ in range(SLOW_HTTP_CLIENTS):
            slow = stack.enter_context(socket.create_connection(address, 10))
            slow.sendall(b"GET /metrics HT")
        longest = max(_timed(partial(_ask_health, address)) for _ in range(HEALTH_CHECKS))
    results.measures.append(Measure(f"{HEALTH}: longest wait", longest * 1e3, "ms", WAIT_LIMIT_MS))


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ask_health(address: Address) -> None:
    with socket.create_connection(address, 10) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = client.recv(1000)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise WrongAnswer(f"{HEALTH}: {answer[:100]!r}")
