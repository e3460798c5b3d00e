"""Runs the loads against a correct broker, and against one that responds wrongly: every wrong response is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.broker_process import Broker
from benchmarks.load import fetch, produce, produce_at_rate, produce_on_many
from benchmarks.results import Results
from benchmarks.topics import WrongAnswer, create_topic, init_producer, verify
from benchmarks.wire import ROWS, make_payload, run_wire
from tests.benchmarks.toy_broker import ToyBroker, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load waits by epoll, and reads /proc")

PAYLOAD = make_payload(2, 50)


@pytest.fixture
def toy() -> ToyBroker:
    return ToyBroker()


@pytest.fixture
def broker(toy: ToyBroker) -> Iterator[Broker]:
    with serving(toy) as address:
        yield Broker(address, None)


def partition_of(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


def test_produce_goes_over_the_partitions_in_turn(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", 3)
    produce(broker, topic, PAYLOAD, requests=10, in_flight=4)
    assert topic.ends == [8, 6, 6]
    assert [len(batches) for batches in toy.logs["t"]] == [4, 3, 3]
    verify(broker.address, topic)


def test_an_idempotent_producer_counts_its_sequence(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    produce(broker, topic, PAYLOAD, requests=4, in_flight=2, version=11, acks=-1, idempotent=True)
    heads = [(int.from_bytes(batch[43:51], "big"), int.from_bytes(batch[53:57], "big")) for batch in toy.logs["t"][0]]
    assert heads == [(7, 0), (7, 2), (7, 4), (7, 6)]


def test_many_connections_lose_nothing(broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", 5)
    produce_on_many(broker, topic, PAYLOAD, connections=8, partitions=5, requests=40)
    assert topic.ends == [16] * 5
    verify(broker.address, topic)


def test_a_steady_rate_gives_a_latency_for_each_request(broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    assert len(produce_at_rate(broker, topic, PAYLOAD, connections=3, requests=50, requests_s=10_000)) == 50
    verify(broker.address, topic)


@pytest.mark.parametrize("version", [4, 12])
def test_fetch_reads_whole_batches_to_the_end(broker: Broker, version: int) -> None:
    topic = create_topic(broker.address, b"t")
    produce(broker, topic, PAYLOAD, requests=20, in_flight=5)
    size = len(PAYLOAD.batches()[0])
    figures = fetch(broker, topic, max_bytes=3 * size + 7, total_bytes=20 * size, version=version)
    assert figures.messages_s / figures.requests_s == pytest.approx(40 / 7)
    with pytest.raises(WrongAnswer, match="The log ended"):
        fetch(broker, topic, max_bytes=3 * size, total_bytes=20 * size + 1, version=version)


WRONG_FIELDS: dict[str, Callable[[Any], None]] = {
    "an error code": lambda response: setattr(partition_of(response), "error_code", 2),
    "a base offset": lambda response: setattr(partition_of(response), "base_offset", 5),
}


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_a_wrong_produce_response_is_found(toy: ToyBroker, broker: Broker, field: str) -> None:
    topic = create_topic(broker.address, b"t")
    toy.distort[0] = WRONG_FIELDS[field]
    with pytest.raises(WrongAnswer):
        produce(broker, topic, PAYLOAD, requests=3, in_flight=1)


def test_an_error_among_many_connections_is_found(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    toy.distort[0] = WRONG_FIELDS["an error code"]
    with pytest.raises(WrongAnswer):
        produce_on_many(broker, topic, PAYLOAD, connections=2, partitions=1, requests=4)


def test_records_that_were_acknowledged_and_lost_are_found(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t", 2)
    produce(broker, topic, PAYLOAD, requests=6, in_flight=1)
    toy.logs["t"][1].pop()
    with pytest.raises(WrongAnswer, match="partition 1 ends at 4, expected 6"):
        verify(broker.address, topic)


def test_a_damaged_record_is_found(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    produce(broker, topic, PAYLOAD, requests=1, in_flight=1)
    toy.logs["t"][0][0] = toy.logs["t"][0][0][:-1] + b"\xff"
    with pytest.raises(WrongAnswer, match="wrong CRC"):
        verify(broker.address, topic)


def test_a_fetch_that_skips_a_batch_is_found(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    produce(broker, topic, PAYLOAD, requests=3, in_flight=1)
    del toy.logs["t"][0][1]
    with pytest.raises(WrongAnswer, match="base offset 4, expected 2"):
        fetch(broker, topic, max_bytes=1 << 20, total_bytes=1, version=4)


def test_a_response_with_another_correlation_id_is_found(toy: ToyBroker, broker: Broker) -> None:
    topic = create_topic(broker.address, b"t")
    answer = toy.answer
    toy.answer = lambda frame: b"\0\0\0\x09" + answer(frame)[4:]  # type: ignore[method-assign]
    with pytest.raises(WrongAnswer, match="correlation id 9"):
        produce(broker, topic, PAYLOAD, requests=1, in_flight=1)


def test_an_error_that_is_not_retriable_is_raised_at_once(toy: ToyBroker, broker: Broker) -> None:
    toy.distort[22] = lambda response: setattr(response, "error_code", 31)
    with pytest.raises(WrongAnswer, match="InitProducerId"):
        init_producer(broker.address)


def test_a_broken_row_is_reported_and_the_next_one_runs(toy: ToyBroker, broker: Broker) -> None:
    def refuse_once(response: Any) -> None:
        if partition_of(response).base_offset == 5:
            partition_of(response).error_code = 10

    toy.distort[0] = refuse_once
    results = Results()
    run_wire(broker, None, results, only="produce 1x", rounds=1, quick=True)
    assert [row.name for row in results.comparisons] == [row.name for row in ROWS if "produce 1x" in row.name]
    broken, whole = results.comparisons
    assert broken.failure is not None
    assert "error 10" in broken.failure
    assert whole.failure is None
    assert whole.subject_value


def test_a_row_runs_on_both_brokers_with_the_same_records(toy: ToyBroker, broker: Broker) -> None:
    rival_toy = ToyBroker()
    results = Results()
    with serving(rival_toy) as address:
        run_wire(broker, Broker(address, None), results, only="produce 1x100B", rounds=2, quick=True)
    (row,) = results.comparisons
    assert results.failures == []
    assert row.ratio is not None
    (name,) = [name for name in toy.logs if not name.startswith("bench-wide")]
    records = [[batch[61:] for batch in side.logs[name][0]] for side in (toy, rival_toy)]
    assert len(records[0]) == 3 * 400
    assert records[0] == records[1]
