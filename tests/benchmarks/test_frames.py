"""Compares the hand-written frames with kbroker's codecs: requests decode to their values, responses are read right."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from benchmarks import frames
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import create_topics, fetch, init_producer_id, list_offsets, metadata, produce
from kbroker.protocol.record_batch import validate_batch
from kbroker.protocol.records import iter_records


def decoded(frame: bytes | bytearray, message: Any, *, flexible: bool = False) -> Any:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    view = memoryview(bytes(frame))
    header, position = codec(REQUEST_HEADER, 2 if flexible else 1).decode(view, 4)
    body, end = codec(message, header.request_api_version).decode(view, position)
    assert end == len(frame)
    return body


def encoded(message: Any, version: int, value: Any, *, flexible: bool = False) -> bytes:
    header = codec(RESPONSE_HEADER, int(flexible)).to_bytes(RESPONSE_HEADER(correlation_id=77))
    return header + codec(message, version).to_bytes(value)


def a_batch(count: int = 3) -> bytes:
    return frames.record_batch(count, frames.make_records(count, 200), now_ms=1_000)


def test_a_batch_is_valid_and_holds_its_records() -> None:
    batch = frames.record_batch(
        5, frames.make_records(5, 100), now_ms=1_000, producer=frames.ProducerId(9, 2), sequence=40
    )
    header = validate_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (9, 2, 40, 5)
    assert [(len(record.value or b""), record.key) for record in iter_records(batch)] == [(100, None)] * 5


@pytest.mark.parametrize("version", [7, 11])
def test_a_produce_frame_carries_one_batch_to_the_patched_partition(version: int) -> None:
    batch = a_batch()
    frame, partition_at = frames.produce_frame(version=version, topic=b"t", batch=batch, acks=-1)
    struct.pack_into(">i", frame, partition_at, 42)
    request = decoded(frame, produce.REQUEST, flexible=version >= 9)
    assert (request.acks, request.transactional_id, request.topic_data[0].name) == (-1, None, "t")
    assert [(data.index, bytes(data.records)) for data in request.topic_data[0].partition_data] == [(42, batch)]


@pytest.mark.parametrize("version", [7, 11])
def test_a_produce_answer_is_read(version: int) -> None:
    partition = produce.PartitionProduceResponse(index=3, error_code=6, base_offset=1 << 40)
    topic = produce.TopicProduceResponse(name="topic", partition_responses=[partition])
    answer = encoded(produce.RESPONSE, version, produce.RESPONSE(responses=[topic]), flexible=version >= 9)
    assert frames.read_produce_answer(version, answer, b"topic") == (77, 6, 1 << 40)


@pytest.mark.parametrize("version", [4, 12])
def test_a_fetch_frame_asks_at_the_patched_offset(version: int) -> None:
    frame, offset_at = frames.fetch_frame(version=version, topic=b"t", max_bytes=1 << 20)
    struct.pack_into(">q", frame, offset_at, 123_456)
    request = decoded(frame, fetch.REQUEST, flexible=version >= 12)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition, partition.fetch_offset) == ("t", 0, 123_456)
    assert (request.max_bytes, partition.partition_max_bytes, request.min_bytes) == (1 << 20, 1 << 20, 1)


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("aborted", [None, []])
def test_a_fetch_answer_is_read(version: int, aborted: list[Any] | None) -> None:
    batch = a_batch()
    partition = fetch.PartitionData(
        partition_index=0, error_code=1, high_watermark=9, aborted_transactions=aborted, records=batch
    )
    topic = fetch.FetchableTopicResponse(topic="topic", partitions=[partition])
    answer = encoded(fetch.RESPONSE, version, fetch.RESPONSE(responses=[topic]), flexible=version >= 12)
    read = frames.read_fetch_answer(version, answer, b"topic")
    assert (read.correlation_id, read.error_code) == (77, 1)
    assert answer[read.position : read.position + read.size] == batch


def test_whole_batches_are_walked_and_a_cut_one_is_left() -> None:
    first, second = bytearray(a_batch(3)), bytearray(a_batch(2))
    struct.pack_into(">q", first, 0, 10)
    struct.pack_into(">q", second, 0, 13)
    data = bytes(first + second)
    assert frames.next_offset_after(data, 0, len(data), 10) == (15, len(data))
    assert frames.next_offset_after(data, 0, len(data) - 1, 10) == (13, len(first))


def test_a_gap_between_batches_is_found() -> None:
    with pytest.raises(ValueError, match="base offset 0, expected 4"):
        frames.next_offset_after(a_batch(), 0, len(a_batch()), 4)


def test_a_flipped_bit_and_a_cut_batch_are_found() -> None:
    batch = bytearray(a_batch())
    assert frames.batch_is_whole(batch, 0)
    assert not frames.batch_is_whole(batch[:-1], 0)
    batch[-1] ^= 1
    assert not frames.batch_is_whole(batch, 0)


def test_topics_offsets_and_producer_ids_are_requested_and_read() -> None:
    (topic,) = decoded(frames.create_topic_frame(b"t", 100), create_topics.REQUEST).topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", 100, 1)
    result = create_topics.CreatableTopicResult(name="t", error_code=36, error_message=None)
    answer = encoded(create_topics.RESPONSE, 2, create_topics.RESPONSE(topics=[result]))
    assert frames.read_create_topic_answer(answer, b"t") == 36

    (requested,) = decoded(frames.list_offsets_frame(b"t", [0, 3]), list_offsets.REQUEST).topics
    assert [(row.partition_index, row.timestamp) for row in requested.partitions] == [(0, -1), (3, -1)]
    rows = [
        list_offsets.ListOffsetsPartitionResponse(partition_index=1, offset=50),
        list_offsets.ListOffsetsPartitionResponse(partition_index=0, error_code=6, offset=-1),
    ]
    ends = list_offsets.RESPONSE(topics=[list_offsets.ListOffsetsTopicResponse(name="t", partitions=rows)])
    read = frames.read_list_offsets_answer(encoded(list_offsets.RESPONSE, 1, ends), b"t")
    assert read == ({0, 6}, {1: 50, 0: -1})

    assert decoded(frames.init_producer_frame(), init_producer_id.REQUEST).transactional_id is None
    answer = encoded(init_producer_id.RESPONSE, 0, init_producer_id.RESPONSE(producer_id=5, producer_epoch=2))
    assert frames.read_init_producer_answer(answer) == (0, frames.ProducerId(5, 2))


def test_replicas_are_requested_and_their_leaders_are_read() -> None:
    (topic,) = decoded(frames.create_topic_frame(b"t", 2, replicas=3), create_topics.REQUEST).topics
    assert topic.replication_factor == 3
    assert decoded(frames.metadata_frame(), metadata.REQUEST).topics == []
    assert [topic.name for topic in decoded(frames.metadata_frame(b"t"), metadata.REQUEST).topics] == ["t"]

    brokers = [
        metadata.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092, rack="r1"),
        metadata.MetadataResponseBroker(node_id=2, host="localhost", port=9093),
    ]
    partitions = [
        metadata.MetadataResponsePartition(partition_index=1, leader_id=2, replica_nodes=[1, 2, 3], isr_nodes=[2, 1]),
        metadata.MetadataResponsePartition(error_code=5, partition_index=0, leader_id=-1, replica_nodes=[1, 2]),
    ]
    found = metadata.MetadataResponseTopic(name="topic", partitions=partitions)
    answer = encoded(metadata.RESPONSE, 1, metadata.RESPONSE(brokers=brokers, controller_id=2, topics=[found]))
    addresses = {1: ("127.0.0.1", 9092), 2: ("localhost", 9093)}
    states = {1: frames.PartitionState(0, 2, 2), 0: frames.PartitionState(5, -1, 0)}
    assert frames.read_metadata_answer(answer) == (addresses, 2, states)
    answer = encoded(metadata.RESPONSE, 1, metadata.RESPONSE(brokers=brokers, controller_id=-1))
    assert frames.read_metadata_answer(answer) == (addresses, -1, {})
