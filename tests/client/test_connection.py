"""One connection: versions are negotiated, answers find their askers, and nonsense or silence ends it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from kbroker.client.address import Address
from kbroker.client.connection import BrokerConnection, open_connection
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import api_versions, delete_topics, list_offsets
from tests.client.toy_broker import ADDRESS, BY_NAME, StepCounter, answer_frame, read_request

LIST_OFFSETS = BY_NAME["ListOffsets"]
DELETE_TOPICS = BY_NAME["DeleteTopics"]

Peer = Callable[[trio.abc.Stream], Any]


@asynccontextmanager
async def connected_to(
    peer: Peer, versions: dict[int, tuple[int, int]] | None = None
) -> AsyncIterator[BrokerConnection]:
    """A connection whose other end `peer` drives; the versions as if they were negotiated."""
    ours, theirs = memory_stream_pair()
    connection = BrokerConnection(ours, ADDRESS, max_response_bytes=100_000)
    if versions is not None:
        connection.versions = versions
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer, theirs)
        yield connection
        await connection.aclose()
        nursery.cancel_scope.cancel()


def sends(data: bytes) -> Peer:
    async def peer(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(data)
        await trio.sleep_forever()

    return peer


async def silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def test_the_highest_version_that_both_know_is_taken() -> None:
    async with connected_to(silent, {LIST_OFFSETS.key: (2, 99), DELETE_TOPICS.key: (0, 3)}) as connection:
        assert connection.version_of(LIST_OFFSETS) == LIST_OFFSETS.versions[-1]
        assert connection.version_of(DELETE_TOPICS) == 3
        assert connection.version_of(LIST_OFFSETS, at_most=5) == 5


@pytest.mark.parametrize("bounds", [{"at_least": 4}, {"at_most": 1}])
async def test_no_common_version_is_said_in_words(bounds: dict[str, int]) -> None:
    async with connected_to(silent, {DELETE_TOPICS.key: (2, 3)}) as connection:
        with pytest.raises(NotServed, match="DeleteTopics"):
            connection.version_of(DELETE_TOPICS, **bounds)
        with pytest.raises(NotServed, match="ListOffsets"):
            connection.version_of(LIST_OFFSETS)


async def test_a_broker_that_does_not_know_our_version_is_asked_in_its_own() -> None:
    asked_versions = []

    async def old_broker(stream: trio.abc.Stream) -> None:
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, _body = request
            asked_versions.append(version)
            if version > 2:
                own = api_versions.ApiVersion(api_key=18, min_version=0, max_version=2)
                refusal = api_versions.RESPONSE(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
                await stream.send_all(answer_frame(asked, 0, correlation_id, refusal))
            else:
                served = api_versions.ApiVersion(api_key=2, min_version=0, max_version=1)
                await stream.send_all(
                    answer_frame(asked, version, correlation_id, api_versions.RESPONSE(api_keys=[served]))
                )

    async with connected_to(old_broker) as connection:
        await connection.negotiate()
        assert asked_versions == [4, 2]
        assert connection.versions == {2: (0, 1)}


async def test_requests_overlap_and_each_asker_gets_its_own_answer() -> None:
    async def answers_late(stream: trio.abc.Stream) -> None:
        requests = [await read_request(stream) for _ in range(3)]
        for request in requests:
            assert request is not None
            asked, version, correlation_id, body = request
            name = body.topics[0].name
            topics = [list_offsets.ListOffsetsTopicResponse(name=name)]
            response = list_offsets.RESPONSE(topics=topics)
            await stream.send_all(answer_frame(asked, version, correlation_id, response))

    got: dict[str, str] = {}
    async with connected_to(answers_late, {LIST_OFFSETS.key: (0, 10)}) as connection:

        async def ask(name: str) -> None:
            topics = [list_offsets.ListOffsetsTopic(name=name)]
            response = await connection.send(LIST_OFFSETS, replica_id=-1, topics=topics)
            got[name] = response.topics[0].name

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(ask, name)
    assert got == {"a": "a", "b": "b", "c": "c"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak the Kafka protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "uses TLS, and this connection does not: set security.protocol"),
        (struct.pack(">i", -1), "does not speak the Kafka protocol"),
        (struct.pack(">i", 100_001), "does not speak the Kafka protocol"),
        (struct.pack(">iib", 5, 77, 0), "correlation id 77 instead of 1"),
        (struct.pack(">ii", 4, 1), "invalid ListOffsets response"),
        (struct.pack(">iiih", 10, 1, 0, 0), "invalid ListOffsets response"),
        (struct.pack(">iibibi", 14, 1, 0, 0, 1, 0), "invalid ListOffsets response"),
    ],
)
async def test_nonsense_is_the_peers_fault_and_ends_the_connection(data: bytes, words: str) -> None:
    async with connected_to(sends(data), {LIST_OFFSETS.key: (10, 10)}) as connection:
        with pytest.raises(PeerError, match=words):
            await connection.send(LIST_OFFSETS)
        assert not connection.is_open
        with pytest.raises(ConnectionFailed):
            await connection.send(LIST_OFFSETS)


async def test_bytes_behind_an_answer_are_nonsense() -> None:
    frame = answer_frame(LIST_OFFSETS, 10, 1, list_offsets.RESPONSE())
    longer = struct.pack(">i", len(frame) - 4 + 1) + frame[4:] + b"\x00"
    async with connected_to(sends(longer), {LIST_OFFSETS.key: (10, 10)}) as connection:
        with pytest.raises(PeerError, match="1 bytes left"):
            await connection.send(LIST_OFFSETS)


async def test_silence_ends_after_the_given_time(autojump_clock: MockClock) -> None:
    async with connected_to(silent, {LIST_OFFSETS.key: (0, 10)}) as connection:
        started = trio.current_time()
        with pytest.raises(ConnectionFailed, match="Timed out after 7 s"):
            await connection.send(LIST_OFFSETS, timeout_s=7)
        assert trio.current_time() - started == pytest.approx(7)
        assert not connection.is_open


async def test_an_end_in_the_middle_of_an_answer_is_told() -> None:
    async def cuts(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(struct.pack(">ih", 100, 0))
        await stream.aclose()

    async with connected_to(cuts, {LIST_OFFSETS.key: (0, 10)}) as connection:
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await connection.send(LIST_OFFSETS)


async def test_a_request_that_is_given_up_takes_the_connection_with_it() -> None:
    """Its answer would come to the next asker."""
    async with connected_to(silent, {LIST_OFFSETS.key: (0, 10)}) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, LIST_OFFSETS)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(ConnectionFailed, match="cancelled"):
            await connection.send(LIST_OFFSETS)


async def test_those_who_wait_behind_a_failure_are_told_too() -> None:
    outcomes = []
    async with connected_to(sends(b"HTTP/1.1 400"), {LIST_OFFSETS.key: (0, 10)}) as connection:

        async def ask() -> None:
            try:
                await connection.send(LIST_OFFSETS)
            except (PeerError, ConnectionFailed) as failure:
                outcomes.append(type(failure))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
    assert sorted(outcomes, key=str) == [ConnectionFailed, PeerError]


async def test_a_request_without_an_answer_leaves_the_next_one_its_own() -> None:
    produce = BY_NAME["Produce"]
    seen = []

    async def answers_only_questions(stream: trio.abc.Stream) -> None:
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, _body = request
            seen.append(asked.name)
            if asked is not produce:
                await stream.send_all(answer_frame(asked, version, correlation_id, delete_topics.RESPONSE()))

    async with connected_to(answers_only_questions, {0: (0, 9), DELETE_TOPICS.key: (0, 6)}) as connection:
        await connection.send_oneway(produce, acks=0, timeout_ms=1)
        assert (await connection.send(DELETE_TOPICS)).responses == []
    assert seen == ["Produce", "DeleteTopics"]


async def test_a_request_waits_once_if_no_other_response_is_awaited() -> None:
    """A follower fetches thousands of times a second: each further wait would be a round of the event loop."""

    async def answers(stream: trio.abc.Stream) -> None:
        async with stream:
            while (request := await read_request(stream)) is not None:
                asked, version, correlation_id, _body = request
                await stream.send_all(answer_frame(asked, version, correlation_id, delete_topics.RESPONSE()))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        nursery.start_soon(answers, await listener.accept())
        connection = BrokerConnection(ours, ADDRESS)
        connection.versions = {DELETE_TOPICS.key: (0, 6)}
        await connection.send(DELETE_TOPICS)
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        for _ in range(3):
            await connection.send(DELETE_TOPICS)
        trio.lowlevel.remove_instrument(counter)
        await connection.aclose()
    assert counter.steps == 3


async def test_nobody_at_the_address_is_one_line() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    with pytest.raises(ConnectionFailed, match=f"^Could not connect to 127.0.0.1:{port}$"):
        async with open_connection(Address("127.0.0.1", port)):
            pass


async def test_what_the_version_lacks_is_left_out() -> None:
    """One request for all versions: by name up to v5 of DeleteTopics, as a struct from v6 on."""
    bodies = []

    async def remembers(stream: trio.abc.Stream) -> None:
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, body = request
            bodies.append(body)
            await stream.send_all(answer_frame(asked, version, correlation_id, delete_topics.RESPONSE()))

    members: dict[str, Any] = {
        "topics": [delete_topics.DeleteTopicState(name="a")],
        "topic_names": ["a"],
        "timeout_ms": 1,
    }
    async with connected_to(remembers, {DELETE_TOPICS.key: (0, 6)}) as connection:
        await connection.send(DELETE_TOPICS, at_most=5, **members)
        await connection.send(DELETE_TOPICS, **members)
    assert [(body.topic_names, [each.name for each in body.topics]) for body in bodies] == [(["a"], []), ([], ["a"])]


def test_the_toy_speaks_as_the_codecs_do() -> None:
    frame = answer_frame(LIST_OFFSETS, 1, 5, list_offsets.RESPONSE())
    assert frame == struct.pack(">ii", 8, 5) + codec(LIST_OFFSETS.response, 1).to_bytes(list_offsets.RESPONSE())
