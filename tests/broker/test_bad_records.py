"""Records that are not to be had: an error code for their partition, and nothing of them in the log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.protocol.compression import Codec, compress, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import build_message_set, iter_message_records
from kbroker.protocol.messages import produce as messages
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    iter_headers,
    validate_stored_batch,
)
from kbroker.protocol.record_walk import IS_COMPILED
from kbroker.protocol.records import Record, iter_records
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import LYING_BODIES, forge, make_batch, now_ms
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client, encode_request, produce_members, records_of

HOUR_MS = 3_600_000


def flip_last_byte(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


def with_length(length: int) -> bytearray:
    batch = make_batch(b"v")
    struct.pack_into(">i", batch, 8, length)
    return batch


def with_magic(magic: int) -> bytearray:
    batch = make_batch(b"v")
    batch[16] = magic
    return batch


def old_messages(magic: int = 1, codec: int = Codec.NONE, *values: bytes) -> bytes:
    records = [Record(number, 1000 + number, b"k", value) for number, value in enumerate(values or (b"v",))]
    return build_message_set(records, magic=magic, codec=codec)


INVALID, CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
LIES: dict[str, tuple[Callable[[], bytes | bytearray | None], ErrorCode]] = {
    "no records": (lambda: None, INVALID),
    "no bytes": (lambda: b"", INVALID),
    "a few bytes": (lambda: b"abc", INVALID),
    "a transaction that was not begun": (
        lambda: forge(make_batch(b"v", producer_id=7), attributes=ATTRIBUTE_TRANSACTIONAL),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a wrong CRC": (lambda: flip_last_byte(make_batch(b"value")), CORRUPT),
    "a length below any format": (lambda: with_length(3), CORRUPT),
    "a negative length": (lambda: with_length(-5), CORRUPT),
    "a length beyond the bytes": (lambda: with_length(10_000), INVALID),
    "an unknown magic": (lambda: with_magic(9), CORRUPT),
    "magic 1 in a version for magic 2": (lambda: old_messages(1), INVALID),
    "magic 0 in a version for magic 2": (lambda: old_messages(0), INVALID),
    "more records claimed than deltas": (lambda: forge(make_batch(b"a", b"b"), record_count=3), INVALID),
    "more records than the bytes can have": (
        lambda: forge(make_batch(b"v" * 30), last_offset_delta=2**31 - 2, record_count=2**31 - 1),
        INVALID,
    ),
    "no body": (lambda: forge(make_batch(b"a"), lambda _: b""), INVALID),
    "more deltas claimed than records": (lambda: forge(make_batch(b"a", b"b"), last_offset_delta=7), INVALID),
    "a negative delta": (lambda: forge(make_batch(), last_offset_delta=-1, record_count=0), INVALID),
    "no records in a batch": (lambda: forge(make_batch(), lambda _: b"", last_offset_delta=0, record_count=0), INVALID),
    "a negative count": (lambda: forge(make_batch(), record_count=-1), INVALID),
    "two batches": (lambda: make_batch(b"a") + make_batch(b"b"), INVALID),
    "bytes behind the batch": (lambda: make_batch(b"a") + b"more", INVALID),
    "a control batch": (lambda: forge(make_batch(), attributes=ATTRIBUTE_CONTROL), INVALID),
    "a base offset": (lambda: forge(make_batch(), base_offset=5), INVALID),
    "an unknown codec": (lambda: forge(make_batch(), attributes=5), INVALID),
    "a producer without a sequence": (lambda: forge(make_batch(), producer_id=5, producer_epoch=0), INVALID),
    "the broker's timestamp type": (
        lambda: forge(make_batch(), attributes=ATTRIBUTE_LOG_APPEND_TIME),
        ErrorCode.INVALID_TIMESTAMP,
    ),
}


async def test_each_lie_of_a_header_has_its_code_and_leaves_nothing(client: Client) -> None:
    await client.create_topic("t")
    for version in (3, 9, 12):
        for kind, (make, code) in LIES.items():
            answer = await client.produce("t", make(), version=version)
            assert (kind, ErrorCode(answer.error_code), answer.base_offset) == (kind, code, -1)
    assert (await client.produce("t", make_batch(b"honest"))).base_offset == 0
    assert [record.value for record in await client.read_all("t")] == [b"honest"]


async def test_a_refused_partition_does_not_spoil_the_others_of_its_request(client: Client) -> None:
    await client.create_topic("t", 3)
    bad = flip_last_byte(make_batch(b"bad"))
    data = [
        messages.PartitionProduceData(index=0, records=make_batch(b"first")),
        messages.PartitionProduceData(index=1, records=bad),
        messages.PartitionProduceData(index=2, records=make_batch(b"last")),
        messages.PartitionProduceData(index=9, records=make_batch(b"nowhere")),
    ]
    topics = [messages.TopicProduceData(name="t", partition_data=data)]
    response = await client.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
    codes = [partition.error_code for partition in response.responses[0].partition_responses]
    assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [record.value for record in await client.read_all("t", partition=2)] == [b"last"]


async def test_a_batch_above_max_message_bytes_is_too_large_for_its_topic_only(client: Client) -> None:
    await client.create_topic("small", max_message_bytes="1000")
    await client.create_topic("large")
    batch = make_batch(bytes(2000))
    assert (await client.produce("small", bytes(batch))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await client.produce("large", bytes(batch))).error_code == 0
    exact = make_batch(bytes(1000 - len(make_batch(bytes(900))) + 900))
    assert len(exact) == 1000
    assert (await client.produce("small", exact)).error_code == 0
    assert (await client.produce("small", make_batch(bytes(1000)))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(await client.read_all("small")) == 1


async def test_timestamps_out_of_bounds_are_refused_record_by_record(client: Client) -> None:
    await client.create_topic(
        "t", message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS)
    )
    for wrong in (now_ms() - 2 * HOUR_MS, now_ms() + 2 * HOUR_MS):
        answer = await client.produce("t", make_batch(b"a", b"b", timestamp=wrong))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert (await client.produce("t", make_batch(timestamp=now_ms() - HOUR_MS // 2))).error_code == 0


async def test_a_compacted_topic_takes_no_record_without_a_key(client: Client) -> None:
    await client.create_topic("table", cleanup_policy="compact")
    answer = await client.produce("table", make_batch(b"v", key=None))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0]
    assert (await client.produce("table", make_batch(b"v", key=b"k"))).error_code == 0


async def test_zstd_needs_produce_v7(client: Client) -> None:
    await client.create_topic("t")
    batch = bytes(make_batch(b"v" * 100, codec=Codec.ZSTD))
    assert (await client.produce("t", batch, version=6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await client.produce("t", batch, version=7)).error_code == 0


async def test_acks_beyond_one_and_all_are_refused(client: Client) -> None:
    await client.create_topic("t")
    for acks in (2, 5, -2, 32767):
        answer = await client.produce("t", make_batch(), acks=acks)
        assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert await client.read_all("t") == []


async def test_without_acks_nothing_is_answered_and_an_error_closes_the_connection(
    client: Client, broker: RunningBroker, connect_to: Connect
) -> None:
    await client.create_topic("t")
    careless = await connect_to(broker)
    await careless.send_bytes(encode_request("Produce", 9, 0, **produce_members("t", make_batch(b"one"), acks=0)))
    await careless.expect_service()
    assert [record.value for record in await client.read_all("t")] == [b"one"]
    await careless.send("Produce", 9, **produce_members("missing", make_batch(b"two"), acks=0))
    assert await careless.wait_closed() == b""


async def test_acks_all_needs_no_more_in_sync_replicas_than_there_are_replicas(client: Client) -> None:
    """Apache Kafka 3.9 and 4.1 accept such a request too (KAFKA-15583)."""
    await client.create_topic("t", min_insync_replicas="2")
    for acks in (-1, 1):
        assert (await client.produce("t", make_batch(), acks=acks)).error_code == 0
    assert len(await client.read_all("t")) == 2


async def test_unknown_topics_partitions_and_ids_are_told(client: Client) -> None:
    topic_id = await client.create_topic("t")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.produce("missing", make_batch())).error_code == unknown
    for index in (1, -1, 2**31 - 1):
        assert (await client.produce("t", make_batch(), partition=index)).error_code == unknown
    for name, index in (("missing", 0), ("t", 1), ("t", -1)):
        assert (await client.fetch(name, 0, partition=index)).error_code == unknown
        assert (await client.list_offset(name, -1, partition=index)).error_code == unknown
        assert (await client.delete_records(name, 0, partition=index)).error_code == unknown
    response = await client.ask("Produce", 13, **produce_members(b"\x07" * 16, make_batch()))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    response = await client.ask("Produce", 13, **produce_members(topic_id, make_batch()))
    assert response.responses[0].partition_responses[0].error_code == 0


async def test_topic_names_that_are_illegal_or_collide_are_refused(client: Client) -> None:
    await client.create_topic("a.b")
    for name in ("", ".", "..", "a/b", "a b", "ä", "x" * 250, "a_b"):
        result = await client.try_create_topic(name)
        assert (name, result.error_code) == (name, ErrorCode.INVALID_TOPIC_EXCEPTION)
    answer = await client.topic_metadata("no such/name", auto_create=True)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = await client.topic_metadata("a_b", auto_create=True)
    assert answer.error_code != 0
    assert (await client.produce("a.b", make_batch())).error_code == 0


async def test_timestamps_of_the_broker_are_stored_with_a_right_crc(client: Client) -> None:
    await client.create_topic("t", message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = await client.produce("t", make_batch(b"a", b"b", timestamp=5))
    assert before <= answer.log_append_time_ms <= now_ms()
    records = await client.read_all("t")
    assert [record.timestamp for record in records] == [answer.log_append_time_ms] * 2
    expect_sound((await client.fetch("t", 0)).records)
    found = await client.list_offset("t", before)
    assert (found.offset, found.timestamp) == (0, answer.log_append_time_ms)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_records_are_stored_in_the_codec_of_the_topic(client: Client, codec: str) -> None:
    await client.create_topic("t", compression_type=codec)
    values = [b"a" * 300, b"b" * 300]
    producer_id = await client.new_producer_id()
    for number, sent in enumerate((Codec.NONE, Codec.GZIP, Codec.LZ4)):
        batch = make_batch(*values, codec=sent, producer_id=producer_id, sequence=2 * number)
        assert (await client.produce("t", batch)).error_code == 0
    answer = await client.fetch("t", 0)
    headers = expect_sound(answer.records)
    names = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4}
    assert {header.codec for header in headers} == {names.get(codec, Codec.ZSTD)}
    assert [header.base_sequence for header in headers] == [0, 2, 4]
    assert [record.value for record in records_of(answer)] == values * 3


def expect_sound(data: Any) -> list[BatchHeader]:
    """Every batch of a fetch answer passes the checks that a client makes."""
    data = bytes(data)
    headers = [validate_stored_batch(data, position) for position, _ in iter_headers(data)]
    assert headers
    return headers


# Invalid bodies with a correct CRC


LAST = 2**63 - 1
ODD_HEADERS: dict[str, dict[str, int]] = {
    "before all time": {"base_timestamp": -LAST - 1, "max_timestamp": -LAST - 1},
    "after all time": {"base_timestamp": LAST, "max_timestamp": LAST},
    "a largest timestamp that no record has": {"max_timestamp": LAST},
    "a largest timestamp below the first": {"max_timestamp": 0},
    "no timestamp": {"base_timestamp": -1, "max_timestamp": -1},
    "a delete horizon": {"attributes": 0x40},
    "unknown attributes": {"attributes": 0x3F80},
    "an epoch below zero": {"producer_id": 5, "producer_epoch": -7, "base_sequence": 0},
    "the last of all producers": {"producer_id": LAST, "producer_epoch": 32767, "base_sequence": 2**31 - 1},
    "a sequence without a producer": {"base_sequence": 77},
    "a leader epoch": {"leader_epoch": 99},
}


async def test_odd_claims_of_a_header_are_refused_or_harmless(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t", segment_bytes="2000")
    taken = 0
    for _ in range(3):
        for kind, header in ODD_HEADERS.items():
            answer = await client.produce("t", forge(make_batch(b"odd"), **header))
            assert answer.error_code in (0, INVALID, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_PRODUCER_EPOCH), (
                kind
            )
            assert answer.base_offset <= taken, kind  # less for batches that an idempotent producer sent before
            taken = max(taken, answer.base_offset + 1)
    await expect_odd_but_whole(client, taken)
    await broker.stop()
    again = await connect_to(await start_broker())
    await expect_odd_but_whole(again, taken)
    assert (await again.produce("t", make_batch(b"v"))).base_offset == taken


async def expect_odd_but_whole(client: Client, count: int) -> None:
    assert 0 < count == (await client.list_offset("t", -1)).offset
    for timestamp in (-3, 0, now_ms(), LAST):
        assert (await client.list_offset("t", timestamp)).error_code == 0
    offset = 0
    while offset < count:
        for version in (0, 2):
            assert (await client.fetch("t", offset, version=version)).error_code in (0, INVALID)
        headers = expect_sound((await client.fetch("t", offset)).records)
        assert [header.base_offset for header in headers] == list(range(offset, offset + len(headers)))
        assert {header.leader_epoch for header in headers} == {0}
        offset += len(headers)


async def test_full_validation_refuses_every_lying_body(start_broker: StartBroker, connect_to: Connect) -> None:
    client = await connect_to(await start_broker({"kbroker.record.validation": "full"}))
    await client.create_topic("t")
    for kind, make in LYING_BODIES.items():
        answer = await client.produce("t", make())
        assert (kind, answer.error_code in (INVALID, CORRUPT)) == (kind, True), ErrorCode(answer.error_code)
    assert (await client.produce("t", make_batch(b"honest"))).base_offset == 0


async def test_by_default_compiled_code_checks_the_records_of_all_batches(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    client = await connect_to(await start_broker())
    await client.create_topic("t")
    for kind, make in LYING_BODIES.items():
        assert (await client.produce("t", make())).error_code == (INVALID if IS_COMPILED else 0), kind


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_bodies_are_checked_whether_a_request_is_decoded_or_recognised(
    start_broker: StartBroker, connect_to: Connect, is_repeated: bool
) -> None:
    client = await connect_to(await start_broker({"kbroker.record.validation": "full"}))
    await client.create_topic("t")
    for kind, make in LYING_BODIES.items():
        if is_repeated:
            assert (await client.produce("t", make_batch(b"honest"))).error_code == 0
        assert (await client.produce("t", make())).error_code == INVALID, kind


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_compressed_records_with_wrong_deltas_are_numbered_anew(
    start_broker: StartBroker, connect_to: Connect, codec: Codec
) -> None:
    """Apache Kafka 4.1 also renumbers the records of such a batch and stores it."""
    client = await connect_to(await start_broker({"kbroker.record.validation": "full"}))
    await client.create_topic("t")
    good = make_batch(b"a", b"b", codec=codec)
    swapped = forge(good, lambda body: compress(codec, swap_halves(decompress(codec, body))))
    assert (await client.produce("t", swapped)).base_offset == 0
    assert (await client.produce("t", make_batch(b"c"))).base_offset == 2
    assert [(record.offset, record.value) for record in await client.read_all("t")] == [(0, b"b"), (1, b"a"), (2, b"c")]


def swap_halves(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[middle:] + data[:middle]


async def test_header_validation_stores_an_invalid_body_and_affects_only_its_consumers(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker({"kbroker.record.validation": "header"})
    client = await connect_to(broker)
    for number, make in enumerate(LYING_BODIES.values()):
        await client.create_topic(f"t{number}")
        await client.create_topic(f"neighbour{number}")
        assert (await client.produce(f"t{number}", make())).error_code == 0
        assert (await client.produce(f"t{number}", make_batch(b"honest"))).error_code == 0
        assert (await client.produce(f"neighbour{number}", make_batch(b"honest"))).error_code == 0
    await expect_harmless(client)
    await broker.stop()
    again = await connect_to(await start_broker({"kbroker.record.validation": "header"}))
    await expect_harmless(again)


async def expect_harmless(client: Client) -> None:
    for number, kind in enumerate(LYING_BODIES):
        topic = f"t{number}"
        for version in (0, 2, 3):  # converted down, as far as it goes
            answer = await client.fetch(topic, 0, version=version)
            assert answer.error_code in (0, INVALID, CORRUPT, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), kind
        for timestamp in (0, now_ms() - HOUR_MS, -3):
            assert (await client.list_offset(topic, timestamp)).error_code == 0, kind
        end = (await client.list_offset(topic, -1)).offset
        answer = await client.fetch(topic, end - 1)
        assert [record.value for record in records_of(answer)] == [b"honest"], kind
        whole = bytes((await client.fetch(topic, 0)).records)
        first, last = expect_sound(whole)
        assert last.base_offset == first.last_offset + 1, kind
        assert [record.value for record in iter_records(whole, first.size)] == [b"honest"], kind
        assert [record.value for record in await client.read_all(f"neighbour{number}")] == [b"honest"], kind


# Formats of old


@pytest.mark.parametrize("magic", [0, 1])
async def test_old_formats_come_in_and_go_out_in_every_codec_that_they_know(client: Client, magic: int) -> None:
    await client.create_topic("t")
    codecs = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    for number, codec in enumerate(codecs):
        answer = await client.produce("t", old_messages(magic, codec, b"a", b"b"), version=2 if magic else 0)
        assert (answer.error_code, answer.base_offset) == (0, 2 * number)
    assert [record.value for record in await client.read_all("t")] == [b"a", b"b"] * 4
    assert [header.codec for header in expect_sound((await client.fetch("t", 0)).records)] == list(codecs)
    for version, old_magic in ((0, 0), (1, 0), (2, 1), (3, 1)):
        answer = await client.fetch("t", 0, version=version)
        assert answer.error_code == 0
        found = list(read_messages(bytes(answer.records), old_magic))
        assert [(record.offset, record.value) for record in found] == [(n, b"ab"[n % 2 : n % 2 + 1]) for n in range(8)]


@pytest.mark.parametrize("magic", [0, 1])
async def test_old_formats_come_in_whatever_stands_where_newer_ones_say_that_they_are_transactional(
    client: Client, magic: int
) -> None:
    await client.create_topic("t")
    times = [0, 1 << 28]  # in magic 1 this is a byte of the timestamp
    keys = [bytes([byte]) for byte in (0x00, 0x10, 0x30, 0xFF)]  # of magic 0, the key's first
    records = [Record(0, time, key, b"v") for time in times for key in keys]
    for record in records:
        answer = await client.produce("t", build_message_set([record], magic=magic), version=2 if magic else 0)
        assert answer.error_code == ErrorCode.NONE
    assert [record.key for record in await client.read_all("t")] == keys * len(times)


def read_messages(data: bytes, magic: int) -> Iterator[Record]:
    assert data[16] == magic
    return iter_message_records(data)


async def test_lies_in_old_formats_have_their_codes_too(client: Client) -> None:
    await client.create_topic("t")
    sound = old_messages(1)
    wrong_crc = sound[:-1] + bytes([sound[-1] ^ 1])
    cases: dict[str, bytes] = {
        "a wrong CRC": wrong_crc,
        "cut off": sound[:-3],
        "two wrappers": old_messages(1, Codec.GZIP) * 2,
        "two magics": old_messages(0) + old_messages(1),
        "nothing": b"",
    }
    for kind, data in cases.items():
        answer = await client.produce("t", data, version=2)
        assert (kind, answer.error_code in (INVALID, CORRUPT)) == (kind, True), ErrorCode(answer.error_code)
    assert await client.read_all("t") == []


# Offsets out of range


async def test_offsets_out_of_range_are_told(client: Client) -> None:
    await client.create_topic("t")
    for _ in range(5):
        await client.produce("t", make_batch(b"a", b"b"))
    out = ErrorCode.OFFSET_OUT_OF_RANGE
    for offset in (11, -1, -5, 2**63 - 1):
        assert (await client.fetch("t", offset)).error_code == out
    assert (await client.fetch("t", 10)).error_code == 0
    for offset in (11, -2, 2**62):
        assert (await client.delete_records("t", offset)).error_code == out
    assert (await client.delete_records("t", 5)).low_watermark == 5
    assert (await client.fetch("t", 4)).error_code == out
    answer = await client.fetch("t", 5)
    assert (answer.error_code, answer.log_start_offset) == (0, 5)
    assert [record.offset for record in await client.read_all("t", offset=5)] == [5, 6, 7, 8, 9]
