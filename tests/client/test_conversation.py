"""A conversation over a watched socket: the watch sends the requests, no task runs for them, and failures end it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import ConnectionFailed
from kbroker.errors import PeerError
from kbroker.protocol.messages import delete_topics
from tests.client.toy_broker import ADDRESS, BY_NAME, StepCounter, answer_frame, read_request

DELETE_TOPICS = BY_NAME["DeleteTopics"]
SEVERAL = 5

Peer = Callable[[trio.SocketStream], Any]


class TrioWatch:
    """A watch that is a task for each socket."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.callbacks: dict[int, Callable[[], None]] = {}
        self._nursery = nursery

    def add(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        assert descriptor not in self.callbacks
        self.callbacks[descriptor] = on_readable
        self._nursery.start_soon(self._watch, descriptor, on_readable)

    def remove(self, descriptor: int) -> None:
        if self.callbacks.pop(descriptor, None) is not None:
            trio.lowlevel.notify_closing(descriptor)

    async def _watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        with suppress(trio.ClosedResourceError):
            while self.callbacks.get(descriptor) is on_readable:
                await trio.lowlevel.wait_readable(descriptor)
                if self.callbacks.get(descriptor) is on_readable:
                    on_readable()


@asynccontextmanager
async def connected_to(peer: Peer, *, is_watched: bool = True) -> AsyncIterator[BrokerConnection]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        watch = TrioWatch(nursery)
        ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        theirs = await listener.accept()
        nursery.start_soon(peer, theirs)
        connection = BrokerConnection(
            ours, ADDRESS, max_response_bytes=1_000_000, lends=True, watch=watch if is_watched else None
        )
        connection.versions = {DELETE_TOPICS.key: (0, 6)}
        yield connection
        assert not watch.callbacks
        await connection.aclose()
        await trio.aclose_forcefully(theirs)
        nursery.cancel_scope.cancel()


def response_of(throttle_ms: int, names: int = 0) -> Any:
    topics = [delete_topics.DeletableTopicResult(name="t" * 200) for _ in range(names)]
    return delete_topics.RESPONSE(throttle_time_ms=throttle_ms, responses=topics)


def answers(*, names: int = 0, piece: int = 1 << 20, first: int = 0) -> Peer:
    """Answers each request with its timeout, in pieces of so many bytes; sends nonsense from the request `first`."""

    async def peer(stream: trio.SocketStream) -> None:
        number = 0
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, body = request
            number += 1
            wrong = int(0 < first <= number)
            frame = answer_frame(asked, version, correlation_id + wrong, response_of(body.timeout_ms, names))
            for start in range(0, len(frame), piece):
                await stream.send_all(frame[start : start + piece])
                await trio.lowlevel.checkpoint()

    return peer


class Asker:
    """Goes on until the response `last`."""

    def __init__(self, last: int = SEVERAL) -> None:
        self.last = last
        self.seen: list[int] = []

    def go_on(self, response: Any) -> dict[str, Any] | None:
        number = response.throttle_time_ms
        self.seen.append(number)
        return None if number >= self.last else {"timeout_ms": number + 1}


either = pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "by trio"])


@either
async def test_each_response_brings_the_next_request(is_watched: bool) -> None:
    async with connected_to(answers(), is_watched=is_watched) as connection:
        for last in (1, 2, SEVERAL):
            asker = Asker(last)
            response = await connection.converse(DELETE_TOPICS, asker.go_on, timeout_ms=1)
            assert response.throttle_time_ms == last
            assert asker.seen == list(range(1, last + 1))


@pytest.mark.parametrize(("names", "piece"), [(0, 1), (0, 3), (500, 1 << 20), (500, 30_000)])
async def test_responses_are_whole_however_they_arrive(names: int, piece: int) -> None:
    async with connected_to(answers(names=names, piece=piece)) as connection:
        asker = Asker()
        response = await connection.converse(DELETE_TOPICS, asker.go_on, timeout_ms=1)
        assert asker.seen == list(range(1, SEVERAL + 1))
        assert [topic.name for topic in response.responses] == ["t" * 200] * names


async def test_no_task_runs_for_the_requests_of_a_conversation() -> None:
    async with connected_to(answers()) as connection:
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        await connection.converse(DELETE_TOPICS, Asker(100).go_on, timeout_ms=1)
        trio.lowlevel.remove_instrument(counter)
    assert counter.steps < 10  # at the first response and at the last, and not for the 98 in between


async def test_a_conversation_may_follow_another_and_single_requests() -> None:
    async with connected_to(answers()) as connection:
        for _ in range(3):
            assert (await connection.send(DELETE_TOPICS, timeout_ms=7)).throttle_time_ms == 7
            assert (await connection.converse(DELETE_TOPICS, Asker().go_on, timeout_ms=1)).throttle_time_ms == SEVERAL


async def test_a_response_may_arrive_with_the_one_before() -> None:
    async def peer(stream: trio.SocketStream) -> None:
        request = await read_request(stream)
        assert request is not None
        asked, version, correlation_id, _body = request
        frames = [answer_frame(asked, version, correlation_id + number, response_of(number)) for number in range(2)]
        await stream.send_all(b"".join(frames))

    async with connected_to(peer) as connection:
        for number in range(2):
            assert (await connection.send(DELETE_TOPICS, timeout_ms=1)).throttle_time_ms == number


async def test_a_request_over_a_closed_connection_is_refused() -> None:
    async with connected_to(answers()) as connection:
        await connection.send(DELETE_TOPICS, timeout_ms=1)
        await connection.aclose()
        with pytest.raises(ConnectionFailed, match="closed"):
            await connection.send(DELETE_TOPICS, timeout_ms=1)


async def test_a_request_too_large_for_the_socket_is_sent_by_the_task() -> None:
    names = ["t" * 30_000 for _ in range(500)]

    def go_on(response: Any) -> dict[str, Any] | None:
        return None if response.throttle_time_ms == 2 else {"timeout_ms": 2, "topic_names": names}

    async with connected_to(answers()) as connection:
        connection.versions = {DELETE_TOPICS.key: (0, 5)}
        assert (await connection.converse(DELETE_TOPICS, go_on, timeout_ms=1)).throttle_time_ms == 2


async def test_a_wrong_response_ends_the_connection() -> None:
    async with connected_to(answers(first=3)) as connection:
        asker = Asker()
        with pytest.raises(PeerError, match="correlation id"):
            await connection.converse(DELETE_TOPICS, asker.go_on, timeout_ms=1)
        assert asker.seen == [1, 2]
        assert not connection.is_open


async def test_a_failure_of_the_listener_is_raised_where_the_conversation_is_held() -> None:
    def go_on(response: Any) -> dict[str, Any] | None:
        if response.throttle_time_ms == 3:
            raise ValueError("not three")
        return {"timeout_ms": response.throttle_time_ms + 1}

    async with connected_to(answers()) as connection:
        with pytest.raises(ValueError, match="not three"):
            await connection.converse(DELETE_TOPICS, go_on, timeout_ms=1)


async def answer_two(stream: trio.SocketStream) -> None:
    """Answers two requests, and reads a third."""
    for _ in range(2):
        request = await read_request(stream)
        assert request is not None
        asked, version, correlation_id, body = request
        await stream.send_all(answer_frame(asked, version, correlation_id, response_of(body.timeout_ms)))
    await read_request(stream)


async def test_an_end_of_the_stream_ends_the_conversation() -> None:
    async def peer(stream: trio.SocketStream) -> None:
        await answer_two(stream)
        await stream.send_all(struct.pack(">ih", 100, 0))
        await stream.aclose()

    async with connected_to(peer) as connection:
        asker = Asker()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await connection.converse(DELETE_TOPICS, asker.go_on, timeout_ms=1)
        assert asker.seen == [1, 2]


async def test_silence_ends_a_conversation_after_the_time_of_one_request(mock_clock: MockClock) -> None:
    async def peer(stream: trio.SocketStream) -> None:
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, body = request
            if body.timeout_ms < SEVERAL:
                mock_clock.jump(4)
                await stream.send_all(answer_frame(asked, version, correlation_id, response_of(body.timeout_ms)))
            else:
                mock_clock.jump(7)

    async with connected_to(peer) as connection:
        began = trio.current_time()
        with pytest.raises(ConnectionFailed, match="Timed out after 7 s"):
            await connection.converse(DELETE_TOPICS, Asker().go_on, timeout_s=7, timeout_ms=1)
        assert trio.current_time() - began == pytest.approx((SEVERAL - 1) * 4 + 7)
        assert not connection.is_open


async def test_a_conversation_that_is_cancelled_closes_its_connection() -> None:
    is_asked = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await answer_two(stream)
        is_asked.set()
        await trio.sleep_forever()

    async with connected_to(peer) as connection:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_after, is_asked, scope)
                await connection.converse(DELETE_TOPICS, Asker().go_on, timeout_ms=1)
        with pytest.raises(ConnectionFailed, match="cancelled"):
            await connection.send(DELETE_TOPICS)


async def cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def test_a_connection_that_another_task_closes_is_removed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later another socket may have its descriptor."""
    removed: list[int] = []
    remove = TrioWatch.remove

    def count(watch: TrioWatch, descriptor: int) -> None:
        removed.append(descriptor)
        remove(watch, descriptor)

    monkeypatch.setattr(TrioWatch, "remove", count)
    is_asked = trio.Event()

    async def peer(stream: trio.SocketStream) -> None:
        await read_request(stream)
        is_asked.set()
        await trio.sleep_forever()

    async with connected_to(peer) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(partial(connection.send, DELETE_TOPICS))
        await is_asked.wait()
        await connection.aclose()
        assert len(removed) == 1
        nursery.cancel_scope.cancel()
    assert len(removed) == 1
