"""Batches that take long to check or to convert: another task gets its turns meanwhile, and memory stays bounded."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.clock import SystemClock
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import build_message_set
from kbroker.protocol.messages import produce
from kbroker.protocol.records import Record
from kbroker.server.requests.thread_work import ThreadWork
from tests.broker.batches import forge
from tests.hostile.canary import FEW_TURNS, CountedWork, ask_beside_canary, turns_beside
from tests.log.batches import NOW, make_batch
from tests.server.conftest import StartBroker, broker, start_broker
from tests.server.handlers.harness import HandlerBroker, parse_response

__all__ = ["broker", "start_broker"]  # fixtures

PRODUCE = 0
MANY = 20_000


async def produce_beside_canary(
    broker: HandlerBroker, topic: str, records: bytes | bytearray, version: int = 9
) -> tuple[Any, int]:
    data = [produce.PartitionProduceData(index=0, records=records)]
    topics = [produce.TopicProduceData(name=topic, partition_data=data)]
    responses: list[Any] = []

    async def ask() -> None:
        responses.append(await broker.ask(PRODUCE, version, acks=1, timeout_ms=10_000, topic_data=topics))

    turns = await turns_beside(broker, ask)
    return responses[0].responses[0].partition_responses[0], turns


@pytest.mark.parametrize("magic", [0, 1])
async def test_many_old_messages_in_few_bytes_are_converted_in_a_thread(broker: HandlerBroker, magic: int) -> None:
    await broker.create_topic("t")
    messages = build_message_set(
        [Record(index, NOW, None, None) for index in range(20_000)], magic=magic, codec=Codec.GZIP
    )
    assert len(messages) < 200_000
    answer, turns = await produce_beside_canary(broker, "t", messages, version=2)
    assert (answer.error_code, broker.log("t").log_end_offset) == (0, 20_000)
    assert turns > FEW_TURNS


async def test_many_records_are_compressed_anew_in_a_thread(broker: HandlerBroker) -> None:
    await broker.create_topic("t", configs={"compression.type": "gzip"})
    batch = make_batch(*[b""] * 30_000)
    answer, turns = await produce_beside_canary(broker, "t", batch)
    assert (answer.error_code, broker.log("t").log_end_offset) == (0, 30_000)
    assert turns > FEW_TURNS


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
async def test_a_bomb_is_decompressed_in_a_thread(start_broker: StartBroker, codec: Codec) -> None:
    broker = await start_broker(kbroker_record_validation="full")
    await broker.create_topic("t")
    batch = make_batch(bytes(60 << 20), codec=codec)
    answer, turns = await produce_beside_canary(broker, "t", batch)
    assert answer.error_code == 0
    assert turns > FEW_TURNS


async def test_a_small_compressed_batch_is_checked_at_once(start_broker: StartBroker) -> None:
    broker = await start_broker(kbroker_record_validation="full")
    await broker.create_topic("t")
    answer, turns = await produce_beside_canary(broker, "t", make_batch(*[b"v" * 100] * 100, codec=Codec.LZ4))
    assert answer.error_code == 0
    assert turns <= FEW_TURNS


async def test_a_batch_that_claims_two_billion_records_is_rejected_and_rolls_nothing(broker: HandlerBroker) -> None:
    await broker.create_topic("t")
    claim = 2**31 - 1
    lie = forge(make_batch(b"v" * 30), last_offset_delta=claim - 1, record_count=claim)
    assert len(lie) < 120
    for _ in range(5):
        answer, _turns = await produce_beside_canary(broker, "t", lie)
        assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(broker.log("t").segment_base_offsets) == 1


async def test_a_thread_ends_soon_after_the_broker_stops() -> None:
    work = ThreadWork(SystemClock())
    pauses = 0
    has_ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def never_ends(pause: Any) -> None:
        nonlocal pauses
        try:
            while True:
                pauses += 1
                pause()
        finally:
            token.run_sync_soon(has_ended.set)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run, never_ends)
        while pauses < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await has_ended.wait()


# Very many partitions or batches in one Produce


def produced(name: str, *data: Any) -> list[Any]:
    return [produce.TopicProduceData(name=name, partition_data=list(data))]


async def test_a_produce_with_very_many_small_batches_is_staged_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("t", partitions=3)
    batch = make_batch(b"v")
    data = [produce.PartitionProduceData(index=number % 3, records=batch) for number in range(MANY)]
    topics = produced("t", *data)
    response, turns = await ask_beside_canary(broker, PRODUCE, 9, acks=1, timeout_ms=10_000, topic_data=topics)
    answers = response.responses[0].partition_responses
    assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [
        (number % 3, 0, number // 3) for number in range(MANY)
    ]
    assert [broker.log("t", index).log_end_offset for index in range(3)] == [6667, 6667, 6666]
    assert turns > MANY / 10


async def test_a_produce_that_names_very_many_unknown_partitions_is_answered_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("t")
    topics = [
        produce.TopicProduceData(name=f"u{n}", partition_data=[produce.PartitionProduceData()]) for n in range(MANY)
    ]
    topics += produced("t", produce.PartitionProduceData(index=0, records=make_batch(b"v")))
    response, turns = await ask_beside_canary(broker, PRODUCE, 9, acks=1, timeout_ms=10_000, topic_data=topics)
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * MANY + [0]
    assert turns > MANY / 10


async def test_no_batch_is_staged_while_other_tasks_run(broker: HandlerBroker) -> None:
    await broker.create_topic("t")
    await broker.create_topic("gone", partitions=1000)
    batch = make_batch(b"v")
    topics = produced("gone", *[produce.PartitionProduceData(index=index, records=batch) for index in range(1000)])
    topics += produced("t", *[produce.PartitionProduceData(index=0, records=batch)] * 1000)
    responses: list[Any] = []

    async def ask() -> None:
        responses.append(await broker.ask(PRODUCE, 9, acks=1, timeout_ms=10_000, topic_data=topics))

    async def ask_and_delete() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(30):
                while not broker.log("gone").log_end_offset:
                    await trio.lowlevel.checkpoint()
            await broker.controller.delete_topic(name="gone")  # its partitions assert that nothing is staged

    await turns_beside(broker, ask_and_delete)
    gone, kept = responses[0].responses
    assert {answer.error_code for answer in kept.partition_responses} == {0}
    assert {answer.error_code for answer in gone.partition_responses} <= {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.log("t").log_end_offset == 1000


async def test_a_request_of_few_bytes_and_many_elements_is_decoded_in_a_thread(broker: HandlerBroker) -> None:
    work = CountedWork(broker)
    topics = [produce.TopicProduceData(name="", partition_data=[]) for _ in range(6_000)]
    body = codec(produce.REQUEST, 9).to_bytes(produce.REQUEST(acks=1, timeout_ms=1000, topic_data=topics))
    assert len(body) < 20_000
    response = parse_response(PRODUCE, 9, await broker.ask_raw(PRODUCE, 9, body, 2))
    assert len(response.responses) == 6_000
    assert work.runs == 2  # the response too
