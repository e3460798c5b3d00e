"""Frames over a socket and over a stream: whole however they arrive, lent or copied, bounded, and ended by errors."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from kbroker.client import frames as frames_module
from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed
from kbroker.client.frames import Frames
from kbroker.errors import PeerError

ADDRESS = Address("127.0.0.1", 9092)
MAX_BYTES = 20_000_000

Ends = tuple[Frames, trio.abc.Stream]
OpenEnds = Callable[..., AbstractAsyncContextManager[Ends]]


@asynccontextmanager
async def over_socket(*, lends: bool = False) -> AsyncIterator[Ends]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        theirs = await listener.accept()
    async with ours, theirs:
        yield Frames(ours, ADDRESS, max_bytes=MAX_BYTES, lends=lends), theirs


@asynccontextmanager
async def over_stream(*, lends: bool = False) -> AsyncIterator[Ends]:
    ours, theirs = memory_stream_pair()
    yield Frames(ours, ADDRESS, max_bytes=MAX_BYTES, lends=lends), theirs


either = pytest.mark.parametrize("open_ends", [over_socket, over_stream])


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def body_of(size: int) -> bytes:
    return bytes(number % 251 for number in range(size))


async def send_in_pieces(stream: trio.abc.Stream, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        await stream.send_all(data[start : start + size])
        await trio.lowlevel.checkpoint()


@either
@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_frames_are_whole_however_they_arrive(open_ends: OpenEnds, lends: bool, piece: int) -> None:
    bodies = [body_of(size) for size in (4, 5, 300, 4, 17)]
    async with open_ends(lends=lends) as (frames, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(send_in_pieces, theirs, b"".join(map(frame_of, bodies)), piece)
        for body in bodies:
            assert bytes(await frames.receive()) == body


@either
@pytest.mark.parametrize("lends", [False, True])
async def test_frames_larger_than_the_buffer_and_small_ones_take_turns(open_ends: OpenEnds, lends: bool) -> None:
    bodies = [body_of(size) for size in (100_000, 10, 9_000_000, 12, 16 * 1024 - 4, 16 * 1024 - 3, 4)]
    async with open_ends(lends=lends) as (frames, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(send_in_pieces, theirs, b"".join(map(frame_of, bodies)), 1 << 20)
        for body in bodies:
            assert bytes(await frames.receive()) == body


async def test_a_copy_stays_as_it_is_and_a_lent_view_until_the_next_frame() -> None:
    first, second = body_of(5000), body_of(5000)[::-1]
    for lends in (False, True):
        async with over_socket(lends=lends) as (frames, theirs):
            await theirs.send_all(frame_of(first))
            received = await frames.receive()
            assert received == first
            await theirs.send_all(frame_of(second))
            assert await frames.receive() == second
            assert (received == first) is not lends


async def test_a_view_of_a_frame_that_was_too_large_to_keep_outlives_the_buffer() -> None:
    body = body_of(frames_module._KEPT_BUFFER_BYTES + 1)
    async with over_socket(lends=True) as (frames, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, frame_of(body) + frame_of(b"next"))
        large = await frames.receive()
        assert await frames.receive() == b"next"
        assert large == body
        assert len(frames._buffer) < 100_000


async def test_memory_is_allocated_for_what_has_arrived() -> None:
    async with over_socket() as (frames, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(frames.receive)
        await theirs.send_all(struct.pack(">i", MAX_BYTES) + bytes(40_000))
        while frames._end < 40_000:
            await trio.lowlevel.checkpoint()
        assert len(frames._buffer) <= 2 * 40_004
        nursery.cancel_scope.cancel()


@either
@pytest.mark.parametrize("size", [-1, 3, MAX_BYTES + 1])
async def test_sizes_out_of_bounds_are_refused(open_ends: OpenEnds, size: int) -> None:
    async with open_ends() as (frames, theirs):
        await theirs.send_all(struct.pack(">i", size) + b"12345678")
        with pytest.raises(PeerError, match="does not speak the Kafka protocol"):
            await frames.receive()


@either
async def test_the_end_of_the_connection_inside_a_frame_is_an_error(open_ends: OpenEnds) -> None:
    async with open_ends() as (frames, theirs):
        await theirs.send_all(frame_of(b"12345678")[:-1])
        await theirs.aclose()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            await frames.receive()


async def test_a_frame_that_the_socket_does_not_take_at_once_is_sent_whole() -> None:
    frame = frame_of(body_of(12_000_000))
    async with over_socket() as (frames, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(frames.send, frame)
        received = bytearray()
        while len(received) < len(frame):
            received += await theirs.receive_some()
        assert received == frame


async def test_a_socket_that_was_closed_is_neither_written_nor_read() -> None:
    async with over_socket() as (frames, _theirs):
        await trio.aclose_forcefully(frames.stream)
        with pytest.raises(trio.BrokenResourceError):
            await frames.send(frame_of(b"1234"))
        with pytest.raises(trio.ClosedResourceError):
            await frames.receive()


async def test_a_socket_that_is_closed_ends_the_wait_for_a_frame() -> None:
    async with over_socket() as (frames, _theirs), trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await frames.receive()

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        await trio.aclose_forcefully(frames.stream)


async def test_a_peer_that_has_reset_the_connection_breaks_it() -> None:
    async with over_socket() as (frames, theirs):
        assert isinstance(theirs, trio.SocketStream)
        theirs.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
        await theirs.aclose()
        with pytest.raises(trio.BrokenResourceError, match="broken"):
            await frames.receive()
        with pytest.raises(trio.BrokenResourceError, match="broken"):
            await frames.send(frame_of(b"1234"))
