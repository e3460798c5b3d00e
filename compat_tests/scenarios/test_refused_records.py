"""Records that are refused, and requests that are too large: both brokers answer with the same error codes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from compat_tests.apache_kafka import run_apache_kafka
from compat_tests.process import free_ports, run_kbroker
from kbroker.protocol.compression import Codec, compress, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics, metadata
from kbroker.protocol.messages import incremental_alter_configs as alter_configs
from tests.broker.batches import LYING_BODIES, forge, make_batch
from tests.broker.wire import Client, connect

BROKER_RESOURCE = 4
SET = 0
REFUSED = ErrorCode.INVALID_RECORD


@pytest.fixture(scope="module")
def validating(broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    """Returns HOST:PORT of a broker that checks records; interpreted, kbroker checks only headers by default."""
    if broker_name != "kbroker":
        yield request.getfixturevalue("bootstrap")
        return
    directory = tmp_path_factory.mktemp("validating")
    options = ["--data-dir", str(directory / "data"), "--set", "kbroker.record.validation=full"]
    with run_kbroker(directory, *options) as (address, _):
        yield address


@pytest.fixture
async def client(validating: str) -> AsyncIterator[Client]:
    async with connect(int(validating.rsplit(":", 1)[1])) as client:
        yield client


async def test_a_batch_with_a_wrong_body_and_a_right_crc_is_refused(
    client: Client, topic: str, broker_name: str
) -> None:
    await client.create_topic(topic)
    codes = {kind: ErrorCode((await client.produce(topic, make())).error_code) for kind, make in LYING_BODIES.items()}
    if broker_name != "kbroker":
        # docs/compatibility.md: Apache Kafka stores uncompressed records whose offset deltas are wrong.
        assert codes.pop("a wrong delta") == ErrorCode.NONE
        # The exception of a decompressor has no code of its own in Apache Kafka.
        codes = {kind: REFUSED if code == ErrorCode.UNKNOWN_SERVER_ERROR else code for kind, code in codes.items()}
    assert codes == dict.fromkeys(codes, REFUSED)
    assert len(codes) >= 12


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_any_negative_length_of_a_key_means_that_there_is_no_key(
    client: Client, topic: str, codec: Codec
) -> None:
    """Both brokers store it. librdkafka reads only -1 as null, and stops at such a record: docs/compatibility.md."""
    await client.create_topic(topic)
    batch = make_batch(b"v", key=None, codec=codec)
    odd = forge(batch, lambda body: compress(codec, minus_three(decompress(codec, body))))
    assert odd != batch
    assert (await client.produce(topic, odd)).error_code == 0
    assert [(record.key, record.value) for record in await client.read_all(topic)] == [(None, b"v")]


def minus_three(record: bytes) -> bytes:
    """Replaces the key length -1, which follows the record's length, attributes and deltas."""
    assert record[4] == 0x01
    return record[:4] + b"\x05" + record[5:]


async def test_a_batch_that_claims_more_records_than_it_has_is_refused(client: Client, topic: str) -> None:
    await client.create_topic(topic)
    lie = forge(make_batch(b"v" * 30), last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    assert (await client.produce(topic, lie)).error_code == REFUSED
    assert (await client.produce(topic, make_batch(b"honest"))).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
async def test_records_with_wrong_deltas_are_numbered_anew_when_their_codec_is_changed(
    client: Client, topic: str, codec: Codec
) -> None:
    await client.create_topic(topic, compression_type="zstd")
    await until_served(client, topic)
    swapped = forge(make_batch(b"a", b"b", codec=codec), lambda body: compress(codec, swap(decompress(codec, body))))
    answer = await client.produce(topic, swapped)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert (await client.produce(topic, make_batch(b"c"))).base_offset == 2
    records = await client.read_all(topic)
    assert [(record.offset, record.value) for record in records] == [(0, b"b"), (1, b"a"), (2, b"c")]


def swap(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[middle:] + data[:middle]


async def test_a_compacted_topic_takes_no_record_without_a_key(client: Client, topic: str) -> None:
    await client.create_topic(topic, cleanup_policy="compact")
    for codec in (Codec.NONE, Codec.ZSTD):
        answer = await client.produce(topic, make_batch(b"v", key=None, codec=codec))
        assert (answer.error_code, [error.batch_index for error in answer.record_errors]) == (REFUSED, [0])


async def test_acks_all_needs_no_more_in_sync_replicas_than_there_are_replicas(client: Client, topic: str) -> None:
    """KAFKA-15583."""
    await client.create_topic(topic, min_insync_replicas="2")
    for acks in (-1, 1):
        assert (await client.produce(topic, make_batch(), acks=acks)).error_code == 0


async def test_very_many_new_partitions_are_refused_together(client: Client, topic: str) -> None:
    topics = [
        create_topics.CreatableTopic(name=f"{topic}-{number}", num_partitions=5_000, replication_factor=1)
        for number in range(3)
    ]
    response = await client.ask("CreateTopics", 7, topics=topics, timeout_ms=30_000, validate_only=True)
    assert {(result.error_code, result.error_message) for result in response.topics} == {
        (ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    }


async def test_very_many_changes_of_configs_are_refused_together(client: Client) -> None:
    configs = [
        alter_configs.AlterableConfig(name=f"custom.{number}", config_operation=SET, value="x")
        for number in range(10_001)
    ]
    resource = alter_configs.AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="", configs=configs)
    response = await client.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    (result,) = response.responses
    assert (result.error_code, result.error_message) == (
        ErrorCode.POLICY_VIOLATION,
        "Unable to perform excessively large batch operation.",
    )


async def test_a_topic_is_in_the_metadata_once_however_often_it_is_named(client: Client, topic: str) -> None:
    await client.create_topic(topic)
    topics = [metadata.MetadataRequestTopic(name=topic) for _ in range(3)]
    assert [found.name for found in (await client.ask("Metadata", 12, topics=topics)).topics] == [topic]


# After a restart


async def until_served(client: Client, topic: str) -> None:
    with trio.fail_after(30):
        while (await client.list_offset(topic, -1)).error_code:  # noqa: ASYNC110
            await trio.sleep(0.1)


async def wait_producer_id(client: Client) -> int:
    """Returns a new producer id. Apache Kafka has none in its first moments."""
    with trio.fail_after(30):
        while True:
            response = await client.ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60_000)
            if not response.error_code:
                return int(response.producer_id)
            await trio.sleep(0.1)


@asynccontextmanager
async def running(
    broker_name: str, request: pytest.FixtureRequest, directory: Path, port: int
) -> AsyncIterator[Client]:
    with ExitStack() as stack:
        if broker_name == "kbroker":
            stack.enter_context(run_kbroker(directory, "--data-dir", str(directory / "data"), port=port))
        else:
            stack.enter_context(run_apache_kafka(request.getfixturevalue("java_tools"), directory, port=port))
        async with connect(port) as client:
            yield client


async def test_after_a_restart_the_last_batch_of_a_producer_is_known_and_no_older_one(
    broker_name: str, request: pytest.FixtureRequest, tmp_path: Path, topic: str
) -> None:
    (port,) = free_ports(1)
    async with running(broker_name, request, tmp_path, port) as client:
        await client.create_topic(topic)
        await until_served(client, topic)
        producer_id = await wait_producer_id(client)

        def batch(sequence: int) -> bytearray:
            return make_batch(b"%d" % sequence, producer_id=producer_id, sequence=sequence)

        for sequence in range(3):
            assert (await client.produce(topic, batch(sequence))).base_offset == sequence
        for sequence in range(3):
            assert (await client.produce(topic, batch(sequence))).base_offset == sequence
    async with running(broker_name, request, tmp_path, port) as client:
        await until_served(client, topic)
        outcomes = [await client.produce(topic, batch(sequence)) for sequence in (0, 1, 2, 3)]
        unknown = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [(answer.error_code, answer.base_offset) for answer in outcomes] == [
            (unknown, -1),
            (unknown, -1),
            (0, 2),
            (0, 3),
        ]
