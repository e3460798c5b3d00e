"""Both brokers throttle clients over their quotas alike, and Kafka's tool sets and describes quotas."""

from __future__ import annotations

import itertools
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.groups import create_topic
from compat_tests.scenarios.test_groups_wire import Wire
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import alter_client_quotas as quotas
from kbroker.protocol.messages import create_topics, delete_topics, fetch, produce
from kbroker.protocol.records import Record, build_batch
from kbroker.protocol.registry import api

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, ALTER_QUOTAS = 0, 1, 3, 18, 19, 20, 49
CONFIGS = "kafka.admin.ConfigCommand"

Limit = Callable[..., None]


class Client(Wire):
    """Connection with a client id."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        super().__init__(bootstrap)
        self.client_id = client_id

    def send(self, key: int, version: int, /, **members: Any) -> None:
        asked = api(key)
        header = REQUEST_HEADER(
            request_api_key=key, request_api_version=version, correlation_id=1, client_id=self.client_id
        )
        body = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
        body += codec(asked.request, version).to_bytes(asked.request(**members))
        self._socket.sendall(struct.pack(">i", len(body)) + body)


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    made = Client(bootstrap, f"limited-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


@pytest.fixture
def limit(bootstrap: str) -> Iterator[Limit]:
    """Returns a function that sets quotas of a client; they are removed at the end."""
    wire, limited = Wire(bootstrap), []

    def alter(client_id: str, values: dict[str, float | None]) -> None:
        entry = quotas.EntryData(
            entity=[quotas.EntityData(entity_type="client-id", entity_name=client_id)],
            ops=[quotas.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        (answer,) = wire.ask(ALTER_QUOTAS, 1, entries=[entry]).entries
        assert answer.error_code == 0, answer.error_message

    def set_quotas(client_id: str, **values: float) -> None:
        limited.append((client_id, dict.fromkeys(values)))
        alter(client_id, dict(values))

    yield set_quotas
    for client_id, values in limited:
        alter(client_id, values)
    wire.close()


def until_throttled(ask: Callable[[], Any], tries: int = 2000) -> Any:
    """Returns the first throttled response: Apache Kafka applies a new quota with a short delay."""
    for _ in range(tries):
        answer = ask()
        if answer.throttle_time_ms:
            return answer
    raise AssertionError("never throttled")


def a_batch(topic: str, size: int) -> dict[str, Any]:
    records = build_batch([Record(0, int(time.time() * 1000), None, b"x" * size)])
    partition = produce.PartitionProduceData(index=0, records=records)
    return {
        "acks": 1,
        "timeout_ms": 1000,
        "topic_data": [produce.TopicProduceData(name=topic, partition_data=[partition])],
    }


def a_fetch(topic: str) -> dict[str, Any]:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10**6)
    topics = [fetch.FetchTopic(topic=topic, partitions=[partition])]
    return {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 10**7, "session_epoch": -1, "topics": topics}


def test_a_throttled_producer_gets_its_response_at_once_and_is_muted(
    bootstrap: str, topic: str, client: Client, limit: Limit
) -> None:
    create_topic(bootstrap, topic, 1)
    limit(client.client_id, producer_byte_rate=1000)
    began = time.monotonic()
    answer = until_throttled(lambda: client.ask(PRODUCE, 9, **a_batch(topic, 3000)))
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 500 < answer.throttle_time_ms < 4000
    assert time.monotonic() - began < 3
    muted = time.monotonic()
    client.ask(API_VERSIONS, 2)
    assert time.monotonic() - muted > answer.throttle_time_ms / 1000 - 0.2
    began = time.monotonic()
    client.ask(API_VERSIONS, 2)
    assert time.monotonic() - began < 0.5


def test_a_throttled_consumer_gets_a_response_without_records(
    bootstrap: str, topic: str, client: Client, limit: Limit
) -> None:
    create_topic(bootstrap, topic, 1)
    client.ask(PRODUCE, 9, **a_batch(topic, 6000))
    limit(client.client_id, consumer_byte_rate=1000)
    answer = until_throttled(lambda: client.ask(FETCH, 11, **a_fetch(topic)))
    assert answer.responses == []
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert 500 < answer.throttle_time_ms < 12_000


def test_the_request_quota_throttles_for_at_most_a_second(client: Client, limit: Limit) -> None:
    limit(client.client_id, request_percentage=0.0001)
    answer = until_throttled(lambda: client.ask(METADATA, 9, topics=None))
    assert answer.throttle_time_ms <= 1000


def test_topic_creation_over_the_quota_is_refused(topic: str, client: Client, limit: Limit) -> None:
    limit(client.client_id, controller_mutation_rate=1)
    numbers = itertools.count()
    created = []

    def create() -> Any:
        name = f"{topic}-{next(numbers)}"
        made = create_topics.CreatableTopic(name=name, num_partitions=10, replication_factor=1)
        answer = client.ask(CREATE_TOPICS, 7, topics=[made], timeout_ms=30_000)
        if not answer.topics[0].error_code:
            created.append(name)
        return answer

    answer = until_throttled(create, 20)
    assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 1000 < answer.throttle_time_ms < 12_000
    other = Wire(f"{client._socket.getpeername()[0]}:{client._socket.getpeername()[1]}")
    doomed = [delete_topics.DeleteTopicState(name=name) for name in created]
    assert {
        response.error_code for response in other.ask(DELETE_TOPICS, 6, topics=doomed, timeout_ms=30_000).responses
    } == {0}
    other.close()


def test_a_producer_of_librdkafka_sees_that_it_is_throttled(
    bootstrap: str, topic: str, limit: Limit, client: Client
) -> None:
    create_topic(bootstrap, topic, 1)
    limit(client.client_id, producer_byte_rate=2000)
    waits: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client.client_id,
            "throttle_cb": lambda event: waits.append(event.throttle_time),
            "linger.ms": 0,
        }
    )
    end = time.monotonic() + 30
    while not waits and time.monotonic() < end:
        producer.produce(topic, b"x" * 5000)
        producer.poll(0.1)
    assert waits
    assert max(waits) < 30
    producer.flush(60)


def test_kafkas_tool_sets_and_shows_the_quotas_of_clients(
    request: pytest.FixtureRequest, java_tools: JavaTools, kbroker_address: str, apache_kafka: str
) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("compares two brokers")
    named = ("--entity-type", "clients", "--entity-name", f"app {uuid.uuid4().hex[:8]}")
    default = ("--entity-type", "clients", "--entity-default")
    steps = (
        (*named, "--alter", "--add-config", "producer_byte_rate=1024,request_percentage=12.5"),
        (*named, "--describe"),
        (*default, "--alter", "--add-config", "controller_mutation_rate=100000"),
        (*default, "--describe"),
        (*named, "--alter", "--delete-config", "producer_byte_rate"),
        (*named, "--describe"),
        (*named, "--alter", "--delete-config", "request_percentage"),
        (*default, "--alter", "--delete-config", "controller_mutation_rate"),
        ("--entity-type", "clients", "--describe"),
    )
    for step in steps:
        ours, theirs = (
            java_tools.run(CONFIGS, "--bootstrap-server", address, *step).replace(address, "BROKER").strip()
            for address in (kbroker_address, apache_kafka)
        )
        assert ours == theirs
