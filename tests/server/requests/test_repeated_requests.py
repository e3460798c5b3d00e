"""Recognised requests get the same response, byte for byte, as decoded requests."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import hypothesis
import pytest
from hypothesis import strategies as st

from kbroker.errors import StorageFailure
from kbroker.log.segments.segment import Segment
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import produce
from kbroker.server.wire.request_slot import RequestSlot
from tests.log.batches import make_batch, make_marker
from tests.server.handlers.harness import Peer, parse_response
from tests.server.requests.twins import (
    EARLIEST,
    FETCH,
    KNOWN_FETCHES,
    KNOWN_LIST_OFFSETS,
    KNOWN_PRODUCES,
    LATEST,
    LIST_OFFSETS,
    PRODUCE,
    TOPICS,
    WAITS,
    Twins,
    fetch_frame,
    fetched,
    frame_of,
    list_offsets_frame,
    listed,
    mutated,
    mutations,
    produce_frame,
    produced,
)

# Recognised requests


@pytest.mark.parametrize("version", KNOWN_PRODUCES)
async def test_the_next_produce_is_recognised_whatever_its_records(twins: Twins, version: int) -> None:
    twins.ask_unknown(produce_frame(version, make_batch(b"first")))
    for number, batch in enumerate([make_batch(b"x"), make_batch(b"y" * 200), make_batch(b"z" * 20_000)], start=1):
        (answer,) = twins.ask_known(produce_frame(version, batch))
        assert produced(version, answer) == (0, number)
    answers = twins.ask_known(*(produce_frame(version, make_batch(b"%d" % number)) for number in range(3)))
    assert [produced(version, answer) for answer in answers] == [(0, 4), (0, 5), (0, 6)]


@pytest.mark.parametrize("version", KNOWN_FETCHES)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_the_next_fetch_is_recognised_whatever_its_offset(twins: Twins, version: int, isolation: int) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"%02d" % number * 50)) for number in range(20)))
    _, everything = fetched(version, twins.ask_unknown(fetch_frame(version, 0, isolation=isolation))[0])
    size = len(everything) // 20
    for offset in (3, 0, 19):
        (answer,) = twins.ask_known(fetch_frame(version, offset, isolation=isolation))
        assert fetched(version, answer) == (0, everything[offset * size :])


@pytest.mark.parametrize("version", KNOWN_LIST_OFFSETS)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_the_latest_and_earliest_offset_are_known_and_follow_the_log(
    twins: Twins, version: int, isolation: int
) -> None:
    frames = [list_offsets_frame(version, timestamp, isolation=isolation) for timestamp in (LATEST, EARLIEST)]
    epoch = 0 if version >= 4 else -1
    assert [listed(version, answer) for answer in twins.ask_unknown(*frames)] == [(0, 0, epoch)] * 2
    for end in (1, 2, 3):
        twins.ask(produce_frame(7, make_batch(b"v")))
        assert [listed(version, answer) for answer in twins.ask_known(*frames)] == [(0, end, epoch), (0, 0, epoch)]
    for broker in twins.brokers:
        broker.log("t").delete_records_before(2)
    assert [listed(version, answer) for answer in twins.ask_known(*frames)] == [(0, 3, epoch), (0, 2, epoch)]


async def test_the_latest_offset_includes_records_that_were_produced_before_it_in_the_same_run(twins: Twins) -> None:
    twins.ask(list_offsets_frame(9))
    twins.ask(produce_frame(9, make_batch(b"v")))
    *_, answer = twins.ask_known(*(produce_frame(9, make_batch(b"v")) for _ in range(3)), list_offsets_frame(9))
    assert listed(9, answer)[:2] == (0, 4)


async def test_fetches_offsets_and_produces_in_turn_on_one_connection_are_known(twins: Twins) -> None:
    frames = [
        produce_frame(9, make_batch(b"v")),
        list_offsets_frame(9, EARLIEST),
        list_offsets_frame(9, LATEST),
        fetch_frame(12, 0),
    ]
    twins.ask_unknown(*frames)
    for _ in range(3):
        twins.ask_known(*frames)


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1])
async def test_the_correlation_id_comes_back(twins: Twins, correlation_id: int) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(12, 0))
    for frame in (produce_frame(9, make_batch(b"w")), fetch_frame(12, 0), list_offsets_frame(9)):
        twins.ask(frame)
        asked = frame[:4] + struct.pack(">i", correlation_id) + frame[8:]
        (answer,) = twins.ask_known(asked)
        assert struct.unpack_from(">i", answer, 4) == (correlation_id,)


async def test_a_client_without_an_id_and_two_clients_in_turn_are_known(twins: Twins) -> None:
    for client_id in (None, "me", ""):
        twins.forget()
        twins.ask_unknown(produce_frame(9, make_batch(b"v"), client_id=client_id))
        twins.ask_known(produce_frame(9, make_batch(b"v"), client_id=client_id))


async def test_partitions_of_one_topic_in_turn_are_known_once_each_was_seen(twins: Twins) -> None:
    for index in (0, 1):
        twins.ask_unknown(produce_frame(7, make_batch(b"v"), index=index))
    for index in (0, 1, 0, 1):
        twins.ask_known(produce_frame(7, make_batch(b"v"), index=index))


async def test_a_fetch_sees_records_that_another_connection_produced_before_it_in_the_same_run(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"a")))
    twins.ask(fetch_frame(12, 0))
    twins.ask_known(fetch_frame(12, 0))
    for broker in twins.brokers:
        other = cast(Any, Peer("PLAINTEXT"))
        broker.dispatch.handle(other, memoryview(bytearray(produce_frame(9, make_batch(b"b")))), RequestSlot(other))
    (answer,) = twins.ask_known(fetch_frame(12, 1))
    code, records = fetched(12, answer)
    assert (code, len(records)) == (0, len(make_batch(b"b")))


# Requests that are decoded


async def test_invalid_records_get_the_usual_error(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))
    corrupt = make_batch(b"v" * 30)
    corrupt[-1] ^= 1
    for batch, code in (
        (corrupt, ErrorCode.CORRUPT_MESSAGE),
        (make_batch(b"v") + make_batch(b"w"), ErrorCode.INVALID_RECORD),
        (make_batch(b"v" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (make_batch(b"v", producer_id=5, sequence=3, epoch=-1), ErrorCode.NONE),
        (make_batch(b"v", producer_id=6, transactional=True), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (b"short", ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
    ):
        (answer,) = twins.ask(produce_frame(9, bytes(batch)))
        assert produced(9, answer)[0] == code


async def test_a_repeated_batch_of_an_idempotent_producer_gets_its_old_offset(twins: Twins) -> None:
    for sequence in range(3):
        twins.ask(produce_frame(9, make_batch(b"v", producer_id=7, sequence=sequence)))
    again = twins.ask_known(produce_frame(9, make_batch(b"v", producer_id=7, sequence=1)))
    gap = twins.ask(produce_frame(9, make_batch(b"v", producer_id=7, sequence=9)))
    assert produced(9, again[0]) == (0, 1)
    assert produced(9, gap[0]) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


async def test_a_fetch_beside_the_log_or_without_enough_is_answered_as_ever(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(12, 0))
    for frame, code in (
        (fetch_frame(12, 7), ErrorCode.OFFSET_OUT_OF_RANGE),
        (fetch_frame(12, -1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (fetch_frame(12, 1), ErrorCode.NONE),
        (fetch_frame(12, 0, min_bytes=100_000), ErrorCode.NONE),
    ):
        twins.ask(frame)
        (answer,) = twins.ask_unknown(frame)
        assert fetched(12, answer)[0] == code


async def test_a_reader_of_committed_records_stops_before_an_open_transaction_and_gets_aborted_transactions(
    twins: Twins,
) -> None:
    twins.ask(produce_frame(9, make_batch(b"plain")), fetch_frame(12, 0, isolation=1))
    for broker in twins.brokers:
        broker.append("t", make_batch(b"open", producer_id=9, transactional=True))
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, isolation=1))
    assert b"open" not in fetched(12, answer)[1]
    for broker in twins.brokers:
        broker.append("t", make_marker(9, commit=False), internal=True)
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, isolation=1))
    (aborted,) = parse_response(FETCH, 12, answer).responses[0].partitions[0].aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (9, 1)


async def test_the_latest_offset_of_committed_records_stops_before_an_open_transaction(twins: Twins) -> None:
    frame = list_offsets_frame(9, isolation=1)
    twins.ask(produce_frame(9, make_batch(b"plain")), frame)
    for broker in twins.brokers:
        broker.append("t", make_batch(b"open", producer_id=9, transactional=True))
    assert listed(9, twins.ask_known(frame)[0])[:2] == (0, 1)
    for broker in twins.brokers:
        broker.append("t", make_marker(9, commit=True), internal=True)
    assert listed(9, twins.ask_known(frame)[0])[:2] == (0, 3)


async def test_another_leader_epoch_fences_a_known_client_that_lists_offsets(twins: Twins) -> None:
    frames = [list_offsets_frame(9, timestamp, epoch=0) for timestamp in (LATEST, EARLIEST)]
    twins.ask(*frames)
    twins.ask_known(*frames)
    for broker in twins.brokers:
        partition = broker.partitions.get("t", 0)
        assert partition is not None
        partition.leader_epoch = 1
    for answer in twins.ask_unknown(*frames):
        assert listed(9, answer)[0] == ErrorCode.FENCED_LEADER_EPOCH
    twins.ask_unknown(*frames)


async def test_a_new_leader_that_catches_up_does_not_tell_its_latest_offset(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [list_offsets_frame(9, timestamp) for timestamp in (LATEST, EARLIEST)]
    twins.ask(*frames)
    for broker in twins.brokers:
        partition = broker.partitions.get("t", 0)
        assert partition is not None
        partition.leadership = cast(Any, SimpleNamespace(view=SimpleNamespace(epoch_start_offset=5)))
    left = cast(Any, twins.peers[0]).session.list_offsets_left
    for _ in range(3):
        (latest,) = twins.ask_unknown(frames[0])
        assert listed(9, latest)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
        twins.ask_known(frames[1])
    assert cast(Any, twins.peers[0]).session.list_offsets_left == left


async def test_another_leader_epoch_fences_a_known_client(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(12, 0, epoch=0))
    twins.ask_known(fetch_frame(12, 0, epoch=0))
    for broker in twins.brokers:
        partition = broker.partitions.get("t", 0)
        assert partition is not None
        partition.leader_epoch = 1
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, epoch=0))
    assert fetched(12, answer)[0] == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_deleted_topic_is_unknown_to_a_known_client(twins: Twins) -> None:
    frames = [produce_frame(9, make_batch(b"v")), fetch_frame(12, 0), list_offsets_frame(9)]
    twins.ask(*frames)
    for broker in twins.brokers:
        await broker.controller.delete_topics(["t"])
    twins.ask_unknown(*frames)
    for broker in twins.brokers:
        await broker.create_topic("t", 1)
    assert produced(9, twins.ask_unknown(frames[0])[0]) == (0, 0)
    assert produced(9, twins.ask_known(frames[0])[0]) == (0, 1)


async def test_with_flush_messages_1_an_answer_waits_for_the_disk(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))
    for broker in twins.brokers:
        await broker.controller.alter_topic_configs("t", {"flush.messages": "1"})
    assert twins.ask_unknown(produce_frame(9, make_batch(b"v"))) == [WAITS]


async def test_a_codec_that_an_old_consumer_cannot_read_is_refused_though_it_was_known(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(4, 0))
    for broker in twins.brokers:
        await broker.controller.alter_topic_configs("t", {"compression.type": "zstd"})
    (answer,) = twins.ask_unknown(fetch_frame(4, 0))
    assert fetched(4, answer)[0] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


async def test_a_known_client_gets_the_error_of_a_disk(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))

    def refuse(*_: object) -> None:
        raise StorageFailure("no room", is_full=True)

    with monkeypatch.context() as full:
        full.setattr(Segment, "write", refuse)
        (answer,) = twins.ask(produce_frame(9, make_batch(b"w")))
    assert produced(9, answer) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    (answer,) = twins.ask(produce_frame(9, make_batch(b"w")))
    assert produced(9, answer) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize(
    "frame",
    [produce_frame(9, make_batch(b"v")), fetch_frame(12, 0), list_offsets_frame(9)],
    ids=["produce", "fetch", "list offsets"],
)
async def test_a_known_client_that_is_no_longer_authorized_is_refused(twins: Twins, frame: bytes) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))
    twins.ask(frame)
    twins.ask_known(frame)
    for broker in twins.brokers:
        broker.allow()
    (answer,) = twins.ask_unknown(frame)
    response = parse_response(frame[1], frame[3], answer)
    (topic,) = response.topics if frame[1] == LIST_OFFSETS else response.responses
    (partition,) = topic.partition_responses if frame[1] == PRODUCE else topic.partitions
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_request_with_another_limit_is_not_recognised(twins: Twins) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"v" * 50)) for _ in range(5)))
    _, everything = fetched(12, twins.ask(fetch_frame(12, 0))[0])
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, max_bytes=1))
    assert len(fetched(12, answer)[1]) == len(everything) // 5


async def test_quotas_count_requests_of_known_clients(twins: Twins) -> None:
    frame = produce_frame(9, make_batch(b"v"))
    twins.ask(frame)
    for broker in twins.brokers:
        await broker.controller.update_entity_configs("clients/me", lambda _: {"producer_byte_rate": "1"})
    (answer,) = twins.ask_unknown(frame)
    assert parse_response(PRODUCE, 9, answer).throttle_time_ms > 0
    assert all(peer.muted_seconds > 0 for peer in twins.peers)
    for broker in twins.brokers:
        await broker.controller.update_entity_configs("clients/me", lambda _: {})
    twins.ask_unknown(frame)
    twins.ask_known(frame)


@pytest.mark.parametrize(
    "frame",
    [
        produce_frame(6, make_batch(b"v")),
        produce_frame(9, make_batch(b"v"), acks=0),
        produce_frame(9, make_batch(b"v"), transactional_id="mine"),
        fetch_frame(3, 0),
        fetch_frame(12, 0, replica=-2),
        fetch_frame(12, 0, last_fetched_epoch=0),
        fetch_frame(12, 0, session_id=5),
        fetch_frame(12, 0, session_epoch=0),
        list_offsets_frame(0),
        list_offsets_frame(9, 0),
        list_offsets_frame(9, -3),
        list_offsets_frame(9, replica=-2),
        list_offsets_frame(9, epoch=7),
        list_offsets_frame(9, index=7),
    ],
    ids=[
        "old produce",
        "no acks",
        "transactional id",
        "old fetch",
        "debugging replica",
        "last epoch",
        "end of a session",
        "new session",
        "old list offsets",
        "by timestamp",
        "largest timestamp",
        "list offsets of a debugging replica",
        "unknown leader epoch",
        "unknown partition",
    ],
)
async def test_other_kinds_of_requests_are_never_learnt(twins: Twins, frame: bytes) -> None:
    twins.ask(produce_frame(7, make_batch(b"v")))
    twins.forget()
    for _ in range(3):
        twins.ask_unknown(frame)


async def test_two_partitions_in_one_request_are_never_learnt(twins: Twins) -> None:
    data = [produce.PartitionProduceData(index=index, records=make_batch(b"v")) for index in (0, 1)]
    topic = produce.TopicProduceData(name="t", partition_data=data)
    frame = frame_of(PRODUCE, 9, produce.REQUEST(acks=1, timeout_ms=1000, topic_data=[topic]))
    for _ in range(3):
        twins.ask_unknown(frame)


async def test_known_requests_of_deleted_partitions_are_dropped(twins: Twins) -> None:
    for number in range(63):
        twins.ask(produce_frame(9, make_batch(b"v"), client_id=f"client {number}"))
    repeated = twins.quick.dispatch._repeated[PRODUCE]
    assert len(repeated.known) == 63
    for broker in twins.brokers:
        await broker.controller.delete_topics(["t"])
    for number in range(2):
        twins.ask(produce_frame(9, make_batch(b"v"), TOPICS[1], client_id=f"client {number}"))
    assert len(repeated.known) == 2


async def test_names_that_would_fill_our_memory_are_not_remembered(twins: Twins) -> None:
    long, endless = "x" * 900, "x" * 30_000
    twins.ask(produce_frame(9, make_batch(b"v")))
    for known, unknown in (
        (produce_frame(9, make_batch(b"v"), client_id=long), produce_frame(9, make_batch(b"v"), client_id=endless)),
        (fetch_frame(12, 0, client_id=long), fetch_frame(12, 0, client_id=endless)),
        (list_offsets_frame(9, client_id=long), list_offsets_frame(9, client_id=endless)),
    ):
        twins.forget()
        twins.ask_unknown(unknown)
        twins.ask_unknown(unknown)
        twins.ask_unknown(known)
        twins.ask_known(known)


async def test_a_connection_whose_requests_take_turns_in_many_shapes_is_given_up(twins: Twins) -> None:
    for number in range(40):
        twins.ask(produce_frame(9, make_batch(b"v"), client_id="x" * (number + 1)))
    twins.ask_known(produce_frame(9, make_batch(b"v"), client_id="x" * 32))
    for _ in range(2):
        twins.ask_unknown(produce_frame(9, make_batch(b"v"), client_id="x" * 40))


async def test_a_connection_that_lists_the_offsets_of_very_many_clients_is_given_up(twins: Twins) -> None:
    for number in range(600):
        twins.ask(list_offsets_frame(9, client_id=f"{number:04d}"))
    twins.ask_known(list_offsets_frame(9, client_id="0511"))
    twins.ask_unknown(list_offsets_frame(9, client_id="0512"))


@pytest.mark.parametrize(
    ("key", "version"),
    [
        *((PRODUCE, version) for version in KNOWN_PRODUCES),
        *((FETCH, version) for version in KNOWN_FETCHES),
        *((LIST_OFFSETS, version) for version in KNOWN_LIST_OFFSETS),
    ],
)
async def test_a_frame_that_differs_a_little_is_answered_as_if_nothing_were_known(
    twins: Twins, key: int, version: int
) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"v" * 40)) for _ in range(20)))

    @hypothesis.settings(deadline=None, max_examples=60)
    @hypothesis.given(st.integers(0, 25), mutations())
    def check(number: int, mutation: tuple[str, int, int]) -> None:
        batch = bytes(make_batch(b"v" * number))
        if key == PRODUCE:
            frame = produce_frame(version, batch)
        elif key == FETCH:
            frame = fetch_frame(version, number % 20)
        else:
            frame = list_offsets_frame(version, -1 - number % 2)
        twins.ask(frame)
        twins.ask_known(frame)
        twins.ask(mutated(frame, mutation, len(batch) if key == PRODUCE else 0))

    check()
