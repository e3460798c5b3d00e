"""Runs the measures of ACLs with few entries: the entries are written, loaded by a broker, and asked for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import trio

from benchmarks import acls
from benchmarks.acls import (
    PRINCIPAL,
    QUICK,
    entries_of_topics,
    exact_cpu_seconds,
    load_entries,
    measure_decision,
    run_acls,
    write_entries,
)
from benchmarks.broker_process import Broker
from benchmarks.load import produce
from benchmarks.results import Results
from benchmarks.topics import WrongAnswer, create_topic, verify
from benchmarks.wire import make_payload
from kbroker.testing.broker import Broker as ThreadedBroker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load waits by epoll, and reads /proc")


def test_entries_are_of_different_topics_and_the_first_is_for_the_client() -> None:
    entries = entries_of_topics(3, 5)
    assert [pattern.name for pattern in entries] == ["topic-000000", "topic-000001", "topic-000002"]
    assert [len(own) for own in entries.values()] == [5, 5, 5]
    assert all(PRINCIPAL in {entry.principal for entry in own} for own in entries.values())


def test_entries_that_were_written_are_loaded_and_counted(tmp_path: Path) -> None:
    write_entries(tmp_path / "data", entries_of_topics(1_100, 2))
    assert trio.run(load_entries, tmp_path / "data", 2_200) > 0
    with pytest.raises(WrongAnswer, match="2,200 ACLs were loaded, expected 2,201"):
        trio.run(load_entries, tmp_path / "data", 2_201)


def test_a_broker_with_the_entries_lets_the_load_produce_to_their_topics_only(tmp_path: Path) -> None:
    write_entries(tmp_path / "data", entries_of_topics(2))
    authorizer = acls.AUTHORIZER[1].partition("=")[2]
    with ThreadedBroker(data_dir=tmp_path / "data", authorizer_class_name=authorizer) as running:
        broker = Broker((running.host, running.port), None)
        topic = create_topic(broker.address, b"topic-000001")
        produce(broker, topic, make_payload(1, 200), requests=10, in_flight=5)
        verify(broker.address, topic)
        with pytest.raises(WrongAnswer, match="error 29"):
            create_topic(broker.address, b"topic-000002")


def test_the_decision_has_a_limit_and_a_missing_right_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cached, first = measure_decision(QUICK, 2)
    assert (cached.limit, first.limit) == (acls.COST_LIMIT_US, None)
    monkeypatch.setattr(acls, "PRINCIPAL", "User:*")
    entries = entries_of_topics(QUICK.entries)
    monkeypatch.setattr(acls, "PRINCIPAL", "User:other")
    monkeypatch.setattr(acls, "entries_of_topics", lambda _: {**entries, next(iter(entries)): frozenset()})
    with pytest.raises(WrongAnswer, match="the authorizer does not"):
        next(measure_decision(QUICK, 1))


def test_a_failed_measure_is_reported_and_others_that_are_not_selected_do_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acls, "entries_of_topics", lambda _: {})
    results = Results()
    run_acls(results, only="unknown row", rounds=1, quick=True)
    assert results.measures == []
    monkeypatch.setattr(acls, "_ask", lambda *_: [False])
    run_acls(results, only="decision", rounds=1, quick=True)
    (failed,) = results.failures
    assert "the authorizer does not" in (failed.failure or "")


def test_cpu_time_is_counted_in_small_steps() -> None:
    broker = Broker(("127.0.0.1", 0), os.getpid())
    before, began = exact_cpu_seconds(broker), time.thread_time()
    while time.thread_time() < began + 0.005:
        pass
    assert exact_cpu_seconds(broker) - before >= 0.003
