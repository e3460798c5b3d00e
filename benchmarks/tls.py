"""Rows of the tls section: kbroker and Apache Kafka with the same key and certificate of P-256; then ACLs on kbroker.

The loads are those of the wire section, over TLS. They run on brokers of their own.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.acls import run_acls
from benchmarks.broker_process import Broker, running_apache_kafka, running_kbroker
from benchmarks.certificates import Certificates
from benchmarks.connection import TlsAddress
from benchmarks.figures import Figures
from benchmarks.handshakes import IN_FLIGHT, Sessions, Visitor, shake_hands
from benchmarks.results import Comparison, Measure, Results
from benchmarks.rounds import failure_of, log_progress, run_in_turn
from benchmarks.wire import QUICK_DIVISOR, FetchLoad, ProduceLoad, Row, run_rows
from compat_tests.apache_kafka import JavaTools

__all__ = ["HANDSHAKE_ROWS", "ROWS", "HandshakeRow", "run_tls", "run_tls_rows"]

NAMES = ("kbroker", "Apache Kafka 4.1")
RATE_FLOOR = 1.3
CPU_LIMIT = 0.8
HANDSHAKES = 3_000

ROWS = (
    Row("TLS produce 80x200B (16 KB)", "msg/s", RATE_FLOOR, ProduceLoad(80, 200, 5, 8_000), CPU_LIMIT),
    Row("TLS produce 1000x1000B (1 MB)", "MB/s", RATE_FLOOR, ProduceLoad(1000, 1000, 5, 400), CPU_LIMIT),
    Row("TLS fetch 64 KB", "MB/s", RATE_FLOOR, FetchLoad(1 << 16, 100 << 20, 4), CPU_LIMIT),
    Row("TLS fetch 1 MB", "MB/s", RATE_FLOOR, FetchLoad(1 << 20, 600 << 20, 4), CPU_LIMIT),
)


@dataclass(frozen=True, slots=True)
class HandshakeRow:
    name: str
    resumes: bool
    floor: float = 0.8


HANDSHAKE_ROWS = (
    HandshakeRow("TLS handshakes, full (P-256)", resumes=False),
    HandshakeRow("TLS handshakes, resumed", resumes=True),
)


class HandshakeLane:
    """Broker, and how many handshakes of its last round resumed a session."""

    def __init__(self, broker: Broker, name: str, address: TlsAddress) -> None:
        self._broker = broker
        self._name = name
        self._address = address
        self._resumed = 0

    def run(self, row: HandshakeRow, visits: int) -> Figures:
        visitor = Visitor(self._address)
        if row.resumes:
            sessions: Sessions = deque()
            shake_hands(self._broker, Visitor(self._address, kept=sessions), visits=IN_FLIGHT)
            visitor = Visitor(self._address, offered=sessions, kept=sessions)
        figures = shake_hands(self._broker, visitor, visits=visits)
        self._resumed = visitor.resumed
        return figures

    def remark(self, row: HandshakeRow, visits: int) -> str:
        """Returns what differs from the row: a broker that does not resume all sessions."""
        if not row.resumes or self._resumed == visits:
            return ""
        return f"{self._name} resumed {self._resumed:,} of {visits:,}"

    def suite(self) -> Measure:
        """Returns a note with the TLS version and the cipher suite that the client and the broker agree on."""
        visitor = Visitor(self._address)
        shake_hands(self._broker, visitor, visits=1)
        return Measure(f"TLS of {self._name}", None, "", note=visitor.suite)


def run_tls(tools: JavaTools | None, results: Results, *, only: str, rounds: int, quick: bool) -> None:
    """`tools`: None to measure only kbroker."""
    if any(only in row.name for row in (*ROWS, *HANDSHAKE_ROWS)):
        failure = failure_of(partial(_run_side_by_side, tools, results, only=only, rounds=rounds, quick=quick))
        if failure is not None:
            results.measures.append(Measure("tls", None, "", failure=failure))
    run_acls(results, only=only, rounds=rounds, quick=quick)


def _run_side_by_side(tools: JavaTools | None, results: Results, *, only: str, rounds: int, quick: bool) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
        certificates = Certificates(directory / "certificates")
        rival: Broker | None = None
        if tools is not None:
            log_progress("Starting Apache Kafka 4.1 with TLS …")
            rival = stack.enter_context(running_apache_kafka(tools, directory, certificates))
        subject = stack.enter_context(running_kbroker(directory / "kbroker", certificates=certificates))
        run_tls_rows(subject, rival, certificates, results, only=only, rounds=rounds, quick=quick)


def run_tls_rows(
    subject: Broker,
    rival: Broker | None,
    certificates: Certificates,
    results: Results,
    *,
    only: str,
    rounds: int,
    quick: bool,
) -> None:
    brokers = [broker for broker in (subject, rival) if broker is not None]
    lanes = [
        HandshakeLane(broker, name, certificates.careless_address(broker.address))
        for broker, name in zip(brokers, NAMES, strict=False)
    ]
    rows = [row for row in ROWS if only in row.name]
    if rows:
        run_rows(rows, subject, rival, results, rounds=rounds, quick=quick)
    visits = HANDSHAKES // QUICK_DIVISOR if quick else HANDSHAKES
    for row in HANDSHAKE_ROWS:
        if only in row.name:
            results.comparisons.append(_compare(row, lanes, rounds, visits))
    results.measures += [lane.suite() for lane in lanes]


def _compare(row: HandshakeRow, lanes: Sequence[HandshakeLane], rounds: int, visits: int) -> Comparison:
    medians, failure = run_in_turn(row.name, [partial(lane.run, row, visits) for lane in lanes], rounds=rounds)
    subject, rival = [*medians, None][:2]
    remarks = [] if failure is not None else [remark for lane in lanes if (remark := lane.remark(row, visits))]
    return Comparison(row.name, "req/s", subject, rival, row.floor, failure=failure, note=", ".join(remarks))
