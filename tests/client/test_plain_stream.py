"""The stream of connections without TLS, over real sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.client.connection import BrokerConnection
from kbroker.client.plain_stream import PlainStream
from kbroker.protocol.messages import fetch
from tests.client.toy_broker import ADDRESS, BY_NAME, answer_frame, read_request

FETCH = BY_NAME["Fetch"]
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


async def test_a_large_frame_arrives_in_its_place(ends: tuple[PlainStream, trio.SocketStream]) -> None:
    ours, theirs = ends
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, MORE_THAN_A_BUFFER + b"next")
        size = len(MORE_THAN_A_BUFFER)  # several allocations
        begun = bytearray(await ours.receive_some(1000))
        frame = await ours.receive_rest(begun, size)
        assert frame is not None
        assert bytes(frame) == MORE_THAN_A_BUFFER
    assert await ours.receive_some() == b"next"


async def test_a_frame_that_ends_too_early_is_none(ends: tuple[PlainStream, trio.SocketStream]) -> None:
    ours, theirs = ends
    await theirs.send_all(b"x" * 100)
    await theirs.aclose()
    assert await ours.receive_rest(bytearray(b"y"), 1 << 30) is None


@pytest.mark.parametrize("has_views", [False, True])
async def test_a_connection_reads_large_and_small_responses(
    ends: tuple[PlainStream, trio.SocketStream], has_views: bool
) -> None:
    ours, theirs = ends
    sizes = (1_000_000, 10, 300_000)

    async def answer() -> None:
        for size in sizes:
            request = await read_request(theirs)
            assert request is not None
            asked, version, correlation_id, _body = request
            data = fetch.PartitionData(partition_index=0, high_watermark=0, records=b"r" * size)
            topics = [fetch.FetchableTopicResponse(topic="orders", partitions=[data])]
            await theirs.send_all(answer_frame(asked, version, correlation_id, fetch.RESPONSE(responses=topics)))

    connection = BrokerConnection(ours, ADDRESS, has_views=has_views)
    connection.versions = {FETCH.key: (4, 4)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        for size in sizes:
            response = await connection.send(FETCH)
            records = response.responses[0].partitions[0].records
            assert isinstance(records, memoryview if has_views and size > 256 * 1024 else bytes)
            assert bytes(records) == b"r" * size


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
