"""Requests that are recognised by their bytes are answered as those that are decoded: byte for byte, whatever comes.

Two brokers get the same frames on one connection each; one of them has nothing to recognise requests by.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

import hypothesis
import pytest
import trio
from hypothesis import strategies as st

from kbroker.config import BrokerConfig
from kbroker.controller.embedded_tree import open_embedded_tree
from kbroker.errors import PeerError, StorageFailure
from kbroker.log.segment import Segment
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import fetch, produce
from kbroker.protocol.registry import api
from kbroker.server import dispatch as dispatching
from kbroker.server.deadlines import Deadlines
from kbroker.server.fetch_session import FetchSessions
from kbroker.server.request import read_request
from kbroker.server.request_slot import RequestSlot
from kbroker.server.transport import BYTES
from tests.log.batches import make_batch, make_marker
from tests.server.handlers.harness import HandlerBroker, Peer, parse_response

PRODUCE: Final = 0
FETCH: Final = 1
KNOWN_PRODUCES: Final = range(7, 14)
KNOWN_FETCHES: Final = range(4, 19)
TOPICS: Final = ("t", "with-a-longer-name")
CLOSED: Final = b"the connection was closed"
WAITS: Final = b"there is no answer yet"


def topic_id(name: str) -> bytes:
    return uuid.UUID(bytes=bytes([1 + TOPICS.index(name)]) * 16, version=4).bytes


class Source:
    """What is random elsewhere: topic ids are to be the same."""

    next = b"\xff" * 16

    def take(self, size: int) -> bytes:
        return self.next[:size]


class Twins:
    """`decoded` counts the requests that had to be."""

    def __init__(self, quick: HandlerBroker, plain: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers = (quick, plain)
        self.quick = quick
        monkeypatch.setattr(plain.dispatch, "_repeated_of", lambda key: None)
        self.peers = [Peer("PLAINTEXT"), Peer("PLAINTEXT")]
        self.decoded = 0

        def counting(*arguments: Any) -> Any:
            self.decoded += 1
            return read_request(*arguments)

        monkeypatch.setattr(dispatching, "read_request", counting)

    def ask(self, *frames: bytes) -> list[bytes]:
        """What both brokers answer to the frames of one run."""
        answers = [self._ask(number, frames) for number in (0, 1)]
        assert answers[0] == answers[1]
        return answers[0]

    def ask_known(self, *frames: bytes) -> list[bytes]:
        """The same for frames that must be recognised."""
        before = self.decoded
        answers = self.ask(*frames)
        assert self.decoded - before == len(frames), "only the other broker should have decoded them"
        return answers

    def ask_unknown(self, *frames: bytes) -> list[bytes]:
        before = self.decoded
        answers = self.ask(*frames)
        assert self.decoded - before == 2 * len(frames)
        return answers

    def _ask(self, number: int, frames: tuple[bytes, ...]) -> list[bytes]:
        broker, peer = self.brokers[number], cast(Any, self.peers[number])
        slots = []
        try:
            for frame in frames:
                slots.append(RequestSlot(peer))
                broker.dispatch.handle(peer, memoryview(bytearray(frame)), slots[-1])
        except PeerError:
            slots.pop()
            self.peers[number] = Peer("PLAINTEXT")
        broker.dispatch.end_run()
        answers = [_content(slot) for slot in slots]
        return answers if len(slots) == len(frames) else [*answers, CLOSED]

    def forget(self) -> None:
        self.peers = [Peer("PLAINTEXT"), Peer("PLAINTEXT")]


def _content(slot: RequestSlot) -> bytes:
    if slot.parts is None:
        slot.cancel()
        return WAITS
    content = b"".join(part if isinstance(part, BYTES) else part.read() for part in slot.parts)
    for part in slot.parts:
        if not isinstance(part, BYTES):
            part.release()
    return content


@pytest.fixture
async def twins(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Twins]:
    async with AsyncExitStack() as stack:
        brokers = []
        for name in ("quick", "plain"):
            (tmp_path / name).mkdir()
            tree = await stack.enter_async_context(open_embedded_tree(":memory:"))
            source = Source()
            broker = HandlerBroker(tree, BrokerConfig.from_properties({}), tmp_path / name, nursery, source.take)
            broker.context.deadlines = Deadlines()
            broker.context.fetch_sessions = FetchSessions(1000, iter(range(1, 100_000)).__next__)
            stack.callback(broker.close)
            await broker.start()
            for topic in TOPICS:
                source.next = topic_id(topic)
                created = await broker.create_topic(topic, 2)
                assert created.id == topic_id(topic)
            brokers.append(broker)
        yield Twins(brokers[0], brokers[1], monkeypatch)


def frame_of(key: int, version: int, body: Any, *, client_id: str | None = "me") -> bytes:
    header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id=client_id)
    asked = api(key)
    head = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
    return head + codec(asked.request, version).to_bytes(body)


def produce_frame(
    version: int,
    batch: bytes | bytearray | None,
    topic: str = "t",
    index: int = 0,
    *,
    acks: int = 1,
    transactional_id: str | None = None,
    client_id: str | None = "me",
) -> bytes:
    data = produce.TopicProduceData(
        name=topic,
        topic_id=topic_id(topic),
        partition_data=[produce.PartitionProduceData(index=index, records=batch)],
    )
    body = produce.REQUEST(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data])
    return frame_of(PRODUCE, version, body, client_id=client_id)


def fetch_frame(
    version: int,
    offset: int,
    topic: str = "t",
    index: int = 0,
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    isolation: int = 0,
    epoch: int = -1,
    replica: int = -1,
    last_fetched_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    client_id: str | None = "me",
) -> bytes:
    asked = fetch.FetchPartition(
        partition=index,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_fetched_epoch,
    )
    data = fetch.FetchTopic(topic=topic, topic_id=topic_id(topic), partitions=[asked])
    members = {"replica_state": fetch.ReplicaState(replica_id=replica)} if version >= 15 else {"replica_id": replica}
    body = fetch.REQUEST(
        max_wait_ms=0,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[data],
        **members,
    )
    return frame_of(FETCH, version, body, client_id=client_id)


def produced(version: int, frame: bytes) -> tuple[int, int]:
    (topic,) = parse_response(PRODUCE, version, frame).responses
    (answer,) = topic.partition_responses
    return answer.error_code, answer.base_offset


def fetched(version: int, frame: bytes) -> tuple[int, bytes]:
    (topic,) = parse_response(FETCH, version, frame).responses
    (answer,) = topic.partitions
    return answer.error_code, bytes(answer.records or b"")


# What is recognised


@pytest.mark.parametrize("version", KNOWN_PRODUCES)
async def test_the_next_produce_is_recognised_whatever_its_records(twins: Twins, version: int) -> None:
    twins.ask_unknown(produce_frame(version, make_batch(b"first")))
    for number, batch in enumerate([make_batch(b"x"), make_batch(b"y" * 200), make_batch(b"z" * 20_000)], start=1):
        (answer,) = twins.ask_known(produce_frame(version, batch))
        assert produced(version, answer) == (0, number)
    answers = twins.ask_known(*(produce_frame(version, make_batch(b"%d" % each)) for each in range(3)))
    assert [produced(version, each) for each in answers] == [(0, 4), (0, 5), (0, 6)]


@pytest.mark.parametrize("version", KNOWN_FETCHES)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_the_next_fetch_is_recognised_whatever_its_offset(twins: Twins, version: int, isolation: int) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"%02d" % number * 50)) for number in range(20)))
    _, everything = fetched(version, twins.ask_unknown(fetch_frame(version, 0, isolation=isolation))[0])
    size = len(everything) // 20
    for offset in (3, 0, 19):
        (answer,) = twins.ask_known(fetch_frame(version, offset, isolation=isolation))
        assert fetched(version, answer) == (0, everything[offset * size :])


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1])
async def test_the_correlation_id_comes_back(twins: Twins, correlation_id: int) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(12, 0))
    for frame in (produce_frame(9, make_batch(b"w")), fetch_frame(12, 0)):
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


async def test_a_fetch_sees_what_another_connection_produced_before_it_in_the_same_run(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"a")))
    twins.ask(fetch_frame(12, 0))
    twins.ask_known(fetch_frame(12, 0))
    for broker in twins.brokers:
        other = cast(Any, Peer("PLAINTEXT"))
        broker.dispatch.handle(other, memoryview(bytearray(produce_frame(9, make_batch(b"b")))), RequestSlot(other))
    (answer,) = twins.ask_known(fetch_frame(12, 1))
    code, records = fetched(12, answer)
    assert (code, len(records)) == (0, len(make_batch(b"b")))


# What takes the ordinary way


async def test_what_is_wrong_with_the_records_is_told_as_ever(twins: Twins) -> None:
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


async def test_a_reader_of_committed_records_stops_before_an_open_transaction_and_learns_what_was_aborted(
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


async def test_another_leader_epoch_fences_who_was_known(twins: Twins) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")), fetch_frame(12, 0, epoch=0))
    twins.ask_known(fetch_frame(12, 0, epoch=0))
    for broker in twins.brokers:
        partition = broker.partitions.get("t", 0)
        assert partition is not None
        partition.leader_epoch = 1
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, epoch=0))
    assert fetched(12, answer)[0] == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_topic_that_has_gone_is_gone_for_who_was_known(twins: Twins) -> None:
    frames = [produce_frame(9, make_batch(b"v")), fetch_frame(12, 0)]
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


async def test_a_disk_that_refuses_is_told_to_who_was_known(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))

    def refuse(*_: object) -> None:
        raise StorageFailure("no room", is_full=True)

    with monkeypatch.context() as full:
        full.setattr(Segment, "write", refuse)
        (answer,) = twins.ask(produce_frame(9, make_batch(b"w")))
    assert produced(9, answer) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    (answer,) = twins.ask(produce_frame(9, make_batch(b"w")))
    assert produced(9, answer) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("frame", [produce_frame(9, make_batch(b"v")), fetch_frame(12, 0)], ids=["produce", "fetch"])
async def test_who_loses_his_rights_loses_them_though_he_was_known(twins: Twins, frame: bytes) -> None:
    twins.ask(produce_frame(9, make_batch(b"v")))
    twins.ask(frame)
    twins.ask_known(frame)
    for broker in twins.brokers:
        broker.allow()
    (answer,) = twins.ask_unknown(frame)
    (topic,) = parse_response(frame[1], frame[3], answer).responses
    (partition,) = topic.partition_responses if frame[1] == PRODUCE else topic.partitions
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_another_limit_is_not_what_was_known(twins: Twins) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"v" * 50)) for _ in range(5)))
    _, everything = fetched(12, twins.ask(fetch_frame(12, 0))[0])
    (answer,) = twins.ask_unknown(fetch_frame(12, 0, max_bytes=1))
    assert len(fetched(12, answer)[1]) == len(everything) // 5


async def test_quotas_count_who_was_known(twins: Twins) -> None:
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


async def test_what_is_known_of_partitions_that_have_gone_is_dropped(twins: Twins) -> None:
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


def mutations() -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.sampled_from(["flip", "flip", "cut", "add"]), st.integers(0, 200), st.integers(1, 255))


def mutated(frame: bytes, mutation: tuple[str, int, int], batch_size: int) -> bytes:
    """Changed anywhere but in API, version and batch: those have tests of their own."""
    kind, place, value = mutation
    behind_size = 3 if frame[1] == PRODUCE and frame[3] >= 9 else 0
    batch_end = len(frame) - behind_size
    if kind == "flip":
        places = [*range(4, batch_end - batch_size), *range(batch_end, len(frame))]
        at = places[-1 - place % len(places)]
        return frame[:at] + bytes([frame[at] ^ value]) + frame[at + 1 :]
    if kind == "cut":
        return frame[: max(len(frame) - 1 - place, 4)]
    return frame + bytes(place % 5) + bytes([value])


@pytest.mark.parametrize(
    ("key", "version"), [*((PRODUCE, each) for each in KNOWN_PRODUCES), *((FETCH, each) for each in KNOWN_FETCHES)]
)
async def test_a_frame_that_differs_a_little_is_answered_as_if_nothing_were_known(
    twins: Twins, key: int, version: int
) -> None:
    twins.ask(*(produce_frame(7, make_batch(b"v" * 40)) for _ in range(20)))

    @hypothesis.settings(deadline=None, max_examples=60)
    @hypothesis.given(st.integers(0, 25), mutations())
    def check(number: int, mutation: tuple[str, int, int]) -> None:
        batch = bytes(make_batch(b"v" * number))
        frame = produce_frame(version, batch) if key == PRODUCE else fetch_frame(version, number % 20)
        twins.ask(frame)
        twins.ask_known(frame)
        twins.ask(mutated(frame, mutation, len(batch) if key == PRODUCE else 0))

    check()
