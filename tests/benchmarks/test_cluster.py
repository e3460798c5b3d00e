"""Runs the loads against a cluster of correct brokers, and against clusters with a leader or a replica missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster, command, wire
from benchmarks.broker_process import Broker, JavaMissing
from benchmarks.connection import Address
from benchmarks.load import fetch, produce, produce_on_many
from benchmarks.results import Results
from benchmarks.three_brokers import BROKERS, ThreeBrokers, kraft_settings
from benchmarks.topics import WrongAnswer, check_in_sync, create_topic, verify
from benchmarks.wire import Lane, make_payload
from tests.benchmarks.toy_broker import ToyBroker, serving_cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load waits by epoll, and reads /proc")

PAYLOAD = make_payload(2, 50)
Toys = list[tuple[ToyBroker, Address]]


@pytest.fixture
def toys() -> Iterator[Toys]:
    with serving_cluster() as toys:
        yield toys


@pytest.fixture
def broker(toys: Toys) -> Broker:
    return Broker(toys[0][1], None)


def leave_out_a_replica(response: Any) -> None:
    for topic in response.topics:
        topic.partitions[-1].isr_nodes = [0, 1]


def test_the_controller_creates_a_topic_and_the_leaders_are_kept(toys: Toys, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", 4, replicas=3)
    addresses = [address for _, address in toys]
    assert topic.leaders == [addresses[index] for index in (1, 2, 0, 1)]


def test_requests_go_to_the_leader(broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", replicas=3)
    produce(broker, topic, PAYLOAD, requests=6, in_flight=2, acks=-1)
    size = len(PAYLOAD.batches()[0])
    fetch(broker, topic, max_bytes=4 * size, total_bytes=6 * size, version=4)
    verify(broker.address, topic)


def test_many_connections_go_to_all_leaders_and_write_to_every_partition(toys: Toys, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", 7, replicas=3)
    runs = 0
    while not all(topic.ends) and runs < 50:  # while a leader is slow, the connections to others send more
        produce_on_many(broker, topic, PAYLOAD, connections=4, partitions=7, requests=70, acks=-1)
        runs += 1
    assert all(topic.ends)
    assert sum(topic.ends) == 140 * runs
    assert [toy.acks for toy, _ in toys] == [{-1}] * 3
    verify(broker.address, topic)


def test_a_leader_that_has_changed_is_found(broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", replicas=3)
    topic.leaders[0] = broker.address
    with pytest.raises(WrongAnswer, match="error 6"):
        produce(broker, topic, PAYLOAD, requests=1, in_flight=1)
    with pytest.raises(WrongAnswer, match="a leader has changed"):
        check_in_sync(broker.address, topic, 3)


def test_a_row_fails_if_a_replica_is_out_of_sync(toys: Toys, broker: Broker) -> None:
    lane = Lane(broker, b"x", replicas=3)
    load = wire.ProduceLoad(2, 50, in_flight=1, requests=2)
    lane.run(load, PAYLOAD, 1)
    toys[0][0].distort[3] = leave_out_a_replica
    with pytest.raises(WrongAnswer, match="not in sync"):
        lane.run(load, PAYLOAD, 1)


def test_after_a_failed_row_the_leaders_are_looked_up_again(broker: Broker) -> None:
    lane = Lane(broker, b"x", replicas=3)
    load = wire.ProduceLoad(2, 50, in_flight=1, requests=2)
    lane.narrow.leaders[0] = broker.address
    with pytest.raises(WrongAnswer):
        lane.run(load, PAYLOAD, 1)
    lane.resynchronise()
    lane.run(load, PAYLOAD, 1)
    lane.verify()


def test_rows_are_those_of_the_wire_with_floors_of_their_own() -> None:
    wire_names = {row.name for row in wire.ROWS}
    assert set(cluster.FLOORS) <= wire_names
    assert [row.name.removeprefix("cluster: ") for row in cluster.ROWS] == list(cluster.FLOORS)
    assert [row.floor for row in cluster.ROWS] == list(cluster.FLOORS.values())
    assert {row.cpu_limit for row in cluster.ROWS} == {0.7}


@contextmanager
def toy_cluster(rival: bool, *_: object) -> Iterator[Any]:
    class Brokers:
        def __init__(self, address: Address) -> None:
            self._address = address

        def as_broker(self) -> Broker:
            return Broker(self._address, None)

    with serving_cluster() as toys:
        brokers = Brokers(toys[0][1])
        yield brokers if rival else (brokers, "127.0.0.1:1")
        assert all(toy.acks <= {-1} for toy, _ in toys)


def test_the_section_runs_its_rows_on_both_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_kinds", lambda: (None, None))
    monkeypatch.setattr(cluster, "running_with_zookeeper", lambda *_: toy_cluster(False))
    monkeypatch.setattr(cluster, "running_kraft", lambda *_: toy_cluster(True))
    results = Results()
    cluster.run_cluster(results, only="1 in flight", rounds=1, quick=True)
    assert results.failures == []
    assert [row.name for row in results.comparisons if row.ratio] == [
        "cluster: produce 1x100B, 1 in flight",
        "cluster: 100 connections, 1x200B, 1 in flight",
    ]
    assert len(results.measures) == 2


def test_without_java_the_section_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find() -> Any:
        raise JavaMissing("java is not on the PATH")

    monkeypatch.setattr(cluster, "find_kinds", find)
    assert command.main(["cluster", "--quick", "--rows", "fetch"]) == 0
    assert "Skipped cluster" in capsys.readouterr().err


def test_every_broker_has_its_own_port_and_directory(tmp_path: Path) -> None:
    brokers = ThreeBrokers((), tmp_path, lambda broker_id, port: kraft_settings({"a": 1}, 99, broker_id, port))
    configs = [brokers.config(broker_id).read_text().splitlines() for broker_id in BROKERS]
    assert all("a=1" in lines and "controller.quorum.voters=1@127.0.0.1:99" in lines for lines in configs)
    for key in ("log.dirs", "advertised.listeners", "node.id"):
        assert len({line for lines in configs for line in lines if line.startswith(f"{key}=")}) == 3
    assert [line for lines in configs for line in lines if line.startswith("process.roles=")] == [
        "process.roles=broker,controller",
        "process.roles=broker",
        "process.roles=broker",
    ]
