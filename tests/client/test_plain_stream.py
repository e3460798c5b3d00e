"""The stream of connections without TLS, over real sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.plain_stream import PlainStream

MORE_THAN_A_BUFFER = bytes(range(256)) * 80_000


@pytest.fixture
async def ends() -> AsyncIterator[tuple[PlainStream, trio.SocketStream]]:
    """Returns both ends of a connection."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        ours = PlainStream(await trio.open_tcp_stream(*listener.getsockname()))
        accepted, _address = await listener.accept()
        theirs = trio.SocketStream(accepted)
        async with ours, theirs:
            yield ours, theirs


async def test_bytes_arrive_in_both_directions(ends: tuple[PlainStream, trio.SocketStream]) -> None:
    ours, theirs = ends
    await ours.send_all(b"question")
    assert await theirs.receive_some() == b"question"
    await theirs.send_all(b"answer")
    assert await ours.receive_some(3) == b"ans"
    assert await ours.receive_some() == b"wer"
    await theirs.aclose()
    assert await ours.receive_some() == b""


async def test_a_request_that_fits_into_the_buffer_is_sent_without_a_turn_of_the_loop(
    ends: tuple[PlainStream, trio.SocketStream],
) -> None:
    ours, theirs = ends
    with trio.CancelScope() as scope:
        scope.cancel()
        await ours.send_all(b"question")
    assert not scope.cancelled_caught
    assert await theirs.receive_some() == b"question"


async def test_what_does_not_fit_into_the_buffer_waits_for_the_reader(
    ends: tuple[PlainStream, trio.SocketStream],
) -> None:
    ours, theirs = ends
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, MORE_THAN_A_BUFFER)
        while len(received) < len(MORE_THAN_A_BUFFER):
            received += await theirs.receive_some()
    assert received == MORE_THAN_A_BUFFER


async def test_a_close_ends_whoever_waits(ends: tuple[PlainStream, trio.SocketStream]) -> None:
    ours, _theirs = ends

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await ours.aclose()
    for use in (lambda: ours.send_all(b"late"), ours.receive_some, ours.wait_send_all_might_not_block):
        with pytest.raises(trio.ClosedResourceError):
            await use()
    await ours.aclose()


async def test_a_reset_is_a_broken_stream(ends: tuple[PlainStream, trio.SocketStream]) -> None:
    ours, theirs = ends
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await theirs.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await ours.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(b"late")
