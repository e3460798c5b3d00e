"""Runs the rows of the tls section against kbrokers with TLS, and checks what they say about resumed sessions."""

from __future__ import annotations

import ssl
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import handshakes, tls
from benchmarks.broker_process import Broker
from benchmarks.certificates import Certificates
from benchmarks.connection import TlsAddress, call
from benchmarks.group_frames import api_versions_frame, read_api_versions_answer
from benchmarks.handshakes import Sessions, Visitor, shake_hands
from benchmarks.load import fetch, produce
from benchmarks.results import Comparison, Results
from benchmarks.tls import HANDSHAKE_ROWS, ROWS, run_tls, run_tls_rows
from benchmarks.topics import WrongAnswer, create_topic, verify
from benchmarks.wire import make_payload
from kbroker.testing.broker import Broker as ThreadedBroker
from tests.benchmarks.toy_broker import ToyBroker, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load waits by epoll, and reads /proc")


@pytest.fixture(autouse=True)
def few_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKES", 400)


def threaded_broker(certificates: Certificates) -> ThreadedBroker:
    settings: dict[str, Any] = {name.replace(".", "_"): text for name, text in certificates.properties.items()}
    return ThreadedBroker(listeners="SSL://127.0.0.1:0", **settings)


def secured(running: ThreadedBroker, certificates: Certificates) -> Broker:
    return Broker(certificates.address((running.host, running.port)), None)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("bench") / "certificates")


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Broker]:
    with threaded_broker(certificates) as running:
        yield secured(running, certificates)


@pytest.fixture
def careless(broker: Broker, certificates: Certificates) -> TlsAddress:
    return certificates.careless_address(broker.address)


def test_the_loads_of_the_wire_run_over_tls(broker: Broker) -> None:
    payload = make_payload(80, 200)
    topic = create_topic(broker.address, b"loads")
    produce(broker, topic, payload, requests=20, in_flight=5)
    size = len(payload.batches()[0])
    figures = fetch(broker, topic, max_bytes=1 << 20, total_bytes=20 * size, version=4)
    assert figures.messages_s / figures.requests_s == pytest.approx(20 * 80)
    verify(broker.address, topic)


def test_clients_verify_the_broker(broker: Broker, certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        call(stranger.address(broker.address), api_versions_frame())
    for address in (certificates.address(broker.address), stranger.careless_address(broker.address)):
        assert read_api_versions_answer(call(address, api_versions_frame()))


def test_a_visitor_without_sessions_shakes_hands_in_full(broker: Broker, careless: TlsAddress) -> None:
    visitor = Visitor(careless)
    shake_hands(broker, visitor, visits=handshakes.IN_FLIGHT + 4)
    assert (visitor.resumed, len(visitor.latencies)) == (0, handshakes.IN_FLIGHT + 4)
    assert visitor.suite.startswith("TLSv1.3, TLS_")


def test_a_visitor_resumes_each_session_that_it_has_once(broker: Broker, careless: TlsAddress) -> None:
    sessions: Sessions = deque()
    shake_hands(broker, Visitor(careless, kept=sessions), visits=handshakes.IN_FLIGHT)
    assert len(sessions) == handshakes.IN_FLIGHT
    visitor = Visitor(careless, offered=sessions, kept=sessions)
    shake_hands(broker, visitor, visits=3 * handshakes.IN_FLIGHT)
    assert (visitor.resumed, len(sessions)) == (3 * handshakes.IN_FLIGHT, handshakes.IN_FLIGHT)


def test_a_wrong_response_after_the_handshake_is_found(
    broker: Broker, careless: TlsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "API_VERSIONS", 9_999)
    with pytest.raises(WrongAnswer, match="ApiVersions 0"):
        shake_hands(broker, Visitor(careless), visits=1)


def run(
    subject: Broker, rival: Broker | None, certificates: Certificates, only: str
) -> tuple[list[Comparison], list[str]]:
    results = Results()
    run_tls_rows(subject, rival, certificates, results, only=only, rounds=1, quick=True)
    assert results.failures == []
    return results.comparisons, [measure.note for measure in results.measures]


def test_a_row_runs_on_both_brokers(broker: Broker, certificates: Certificates) -> None:
    with threaded_broker(certificates) as other:
        rows, notes = run(broker, secured(other, certificates), certificates, "1000x1000B")
    (row,) = rows
    assert (row.floor, row.cpu_limit) == (1.3, 0.8)
    assert row.ratio is not None
    assert len(notes) == 2
    assert all(note.startswith("TLSv1.3") for note in notes)


@pytest.mark.parametrize(("tickets", "note"), [(0, "Apache Kafka 4.1 resumed 0 of 40"), (1, "")])
def test_a_broker_that_does_not_resume_sessions_is_named(
    broker: Broker, certificates: Certificates, tickets: int, note: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.properties["ssl.keystore.location"])
    context.num_tickets = tickets
    with serving(ToyBroker(), context) as address:
        rows, _ = run(broker, Broker(certificates.address(address), None), certificates, "resumed")
    (row,) = rows
    assert (row.note, row.ratio is not None) == (note, True)


def test_every_selected_row_runs_and_no_other(broker: Broker, certificates: Certificates) -> None:
    rows, notes = run(broker, None, certificates, "handshakes")
    assert [row.name for row in rows] == [row.name for row in HANDSHAKE_ROWS]
    assert [(row.floor, row.note) for row in rows] == [(0.8, ""), (0.8, "")]
    assert all(row.subject_value for row in rows)
    assert len(notes) == 1


def test_names_are_different_and_a_row_that_is_not_selected_starts_nothing() -> None:
    names = [row.name for row in (*ROWS, *HANDSHAKE_ROWS)]
    assert len(set(names)) == len(names) == 6
    results = Results()
    run_tls(None, results, only="unknown row", rounds=1, quick=True)
    assert (results.comparisons, results.measures) == ([], [])
