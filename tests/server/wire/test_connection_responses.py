"""Responses of a connection: bounds of what is not sent yet, slices of files, reading ahead."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.errors import StorageFailure
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.send_queue import SEND_PER_TURN
from tests.server.toy_protocol import Slice, frame, split
from tests.server.wire_bench import Bench, CountingTransport, receive


def test_a_client_that_asks_and_never_reads_is_not_read_any_more(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_unsent_bytes=100_000)
    connection, peer = bench.connect()
    request = frame(b"b50000")
    asked = 0
    for _ in range(2000):
        with contextlib.suppress(BlockingIOError):
            asked += peer.send(request)
        bench.turn()
    handled = bench.handler.handled
    assert not bench.watcher.reading[connection]
    assert bench.network.budget.used <= 100_000 + 2 * 50_004
    assert asked > handled * len(request)

    received = b""
    while bench.turn() or bench.watcher.writing[connection]:
        received += receive(peer)
    received += receive(peer)
    assert len(split(received)) == asked // len(request) == bench.handler.handled
    assert bench.watcher.reading[connection]
    assert bench.network.budget.used == connection.reader.reserved


def test_when_memory_is_used_up_only_those_without_unsent_responses_are_read(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(max_unsent_bytes=50_000_000, queued_max_request_bytes=4_000_000)
    first, first_peer = bench.connect()
    second, second_peer = bench.connect()
    third, _ = bench.connect()
    first_peer.sendall(frame(b"b3000000"))
    bench.in_run(first.on_readable)
    assert bench.watcher.reading[first]
    second_peer.sendall(frame(b"b3000000"))
    bench.in_run(second.on_readable)
    assert bench.network.budget.is_exhausted()
    assert not bench.watcher.reading[second]
    assert bench.watcher.reading[third]
    while bench.turn() or bench.watcher.writing[second]:
        receive(second_peer)
    assert bench.watcher.reading[second]


def test_a_turn_sends_so_much_and_leaves_the_rest_for_the_next(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    ours, peer = socket.socketpair()
    bench.sockets += (ours, peer)
    transport = CountingTransport(ours, portable=False)
    transport.send = transport.send_more = transport.counted(len)  # a socket that is never full
    connection = Connection(bench.network, bench.watcher, transport)
    peer.sendall(frame(b"p"))
    bench.in_run(connection.on_readable)
    slot, _ = bench.handler.parked[0]
    slot.complete([bytes(300_000)] * 10)
    assert bench.watcher.writing[connection]
    assert SEND_PER_TURN <= sum(transport.sends) < SEND_PER_TURN + 300_000
    connection.on_writable()
    connection.on_writable()
    assert sum(transport.sends) == 3_000_000
    assert not bench.watcher.writing[connection]


def test_a_run_stops_when_its_responses_are_too_many_bytes(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_unsent_bytes=100_000)
    connection, peer = bench.connect()
    peer.sendall(frame(b"b60000") * 30)
    bench.in_run(connection.on_readable)
    assert bench.handler.handled == 2


def test_parked_requests_are_bounded(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_in_flight=100)
    connection, peer = bench.connect()
    peer.sendall(frame(b"p") * 250)
    while bench.turn():
        pass
    assert bench.handler.handled == 100
    assert not bench.watcher.reading[connection]
    received = 0
    while bench.handler.parked:
        bench.handler.complete(0)
        bench.handler.parked.pop(0)
        bench.turn()
        received += len(split(receive(peer)))
    assert received == bench.handler.handled == 250


def test_pinned_slices_of_a_client_that_never_reads_are_bounded(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench(max_in_flight=50)
    path = tmp_path / "log"
    path.write_bytes(bytes(1_000_000))
    slices: list[Slice] = []
    with path.open("rb") as file:

        def make_slice(body: bytes) -> Slice:
            slices.append(Slice(file.fileno(), 0, 1_000_000))
            return slices[-1]

        bench.handler.make_slice = make_slice
        connection, peer = bench.connect()
        for _ in range(500):
            peer.sendall(frame(b"s"))
            bench.turn()
            if not bench.watcher.reading[connection]:
                break
        assert not bench.watcher.reading[connection]
        assert len(slices) < 60
        connection.close()
    assert [file_slice.released for file_slice in slices] == [1] * len(slices)


def test_slices_arrive_whole_and_are_released(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    content = os.urandom(3 * SEND_PER_TURN + 12_345)
    path = tmp_path / "log"
    path.write_bytes(b"before" + content + b"after")
    with path.open("rb") as file:
        slices = [
            Slice(file.fileno(), 6, len(content)),
            Slice(file.fileno(), 6, 0),
            Slice(file.fileno(), 6 + 100, 5000),
            Slice(-1, 0, 7, content=b"in core"),
        ]
        waiting = iter(slices)
        bench.handler.make_slice = lambda body: next(waiting)
        connection, peer = bench.connect()
        peer.sendall(frame(b"s") * 4 + frame(b"end"))
        received = b""
        while bench.turn() or bench.watcher.writing[connection]:
            received += receive(peer)
        received += receive(peer)
    assert split(received) == [content, b"", content[100:5100], b"in core", b"end"]
    assert [file_slice.released for file_slice in slices] == [1, 1, 1, 1]


def test_a_slice_that_was_truncated_away_drops_the_connection(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(20_000_000))
    with path.open("rb") as file:
        file_slice = Slice(file.fileno(), 0, 20_000_000)
        bench.handler.make_slice = lambda body: file_slice
        connection, peer = bench.connect()
        peer.sendall(frame(b"s"))
        bench.in_run(connection.on_readable)
        assert bench.watcher.writing[connection]
        file_slice.valid = False
        received = receive(peer)
        connection.on_writable()
        assert connection.is_closed
        assert receive(peer) == b""
    assert file_slice.released == 1
    assert 4 < len(received) < 20_000_000


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_a_slice_that_is_not_valid_is_never_sent(make_bench: Callable[..., Bench], size: int) -> None:
    bench = make_bench()
    file_slice = Slice(-1, 0, size, content=bytes(size))
    file_slice.valid = False
    bench.handler.make_slice = lambda body: file_slice
    connection, peer = bench.connect()
    peer.sendall(frame(b"s"))
    bench.in_run(connection.on_readable)
    assert connection.is_closed
    assert receive(peer) in (b"", struct.pack(">i", size))
    assert file_slice.released == 1


def test_a_file_that_ends_early_drops_the_connection(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(100))
    with path.open("rb") as file:
        file_slice = Slice(file.fileno(), 0, 1000)
        bench.handler.make_slice = lambda body: file_slice
        connection, peer = bench.connect()
        peer.sendall(frame(b"s"))
        while bench.turn() or (not connection.is_closed and bench.watcher.writing[connection]):
            pass
    assert connection.is_closed
    assert file_slice.released == 1


def test_small_slices_leave_in_one_send_with_the_bytes_around_them(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 100)
    slices: list[Slice] = []
    with path.open("rb") as file:

        def make_slice(body: bytes) -> Slice:
            slices.append(Slice(file.fileno(), int(body[1:]), 300, is_hot_tail=len(slices) % 2 == 0))
            return slices[-1]

        bench.handler.make_slice = make_slice
        connection, peer = bench.connect()
        peer.sendall(b"".join(frame(b"s%d" % position) for position in range(20)))
        bench.in_run(connection.on_readable)
    content = path.read_bytes()
    assert split(receive(peer)) == [content[position : position + 300] for position in range(20)]
    assert len(bench.transports[connection].sends) == 1
    assert [file_slice.released for file_slice in slices] == [1] * 20


def test_the_end_of_a_response_leaves_with_its_slice(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 400)
    with path.open("rb") as file:
        bench.handler.make_slice = lambda body: Slice(file.fileno(), 0, 70_000)
        connection, peer = bench.connect()
        peer.sendall(frame(b"s") + frame(b"e") + frame(b"b1000"))
        bench.in_run(connection.on_readable)
    content = path.read_bytes()
    assert split(receive(peer)) == [content[:70_000], b"e", b"B" * 1000]
    assert bench.transports[connection].sends == [4 + 70_000 + 5, 4 + 1000]


@pytest.mark.parametrize("error", [StorageFailure("disk: gone"), OSError(errno.EIO, "gone")])
def test_a_disk_that_fails_under_a_response_drops_its_connection(
    make_bench: Callable[..., Bench],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def fail(self: Slice) -> bytes:
        raise error

    monkeypatch.setattr(Slice, "read", fail)
    bench = make_bench()
    file_slice = Slice(-1, 0, 100)
    bench.handler.make_slice = lambda body: file_slice
    connection, peer = bench.connect()
    peer.sendall(frame(b"s"))
    bench.in_run(connection.on_readable)
    assert connection.is_closed
    assert file_slice.released == 1
    assert "gone" in caplog.text


def test_a_cold_slice_is_read_ahead_before_it_is_sent(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[tuple[int, int]] = []

    def is_never_cached(file_number: int, position: int, size: int) -> bool:
        probed.append((position, size))
        return False

    monkeypatch.setattr("kbroker.server.wire.send_queue.is_in_page_cache", is_never_cached)
    bench = make_bench()
    path = tmp_path / "log"
    content = os.urandom(SEND_PER_TURN + 1000)
    path.write_bytes(content)
    with path.open("rb") as file:
        file_slice = Slice(file.fileno(), 0, len(content), is_hot_tail=False)
        bench.handler.make_slice = lambda body: file_slice
        connection, peer = bench.connect()
        peer.sendall(frame(b"s") + frame(b"e"))
        bench.in_run(connection.on_readable)
        received = receive(peer)
        assert received == struct.pack(">i", len(content))
        for expected in ((0, SEND_PER_TURN), (SEND_PER_TURN, 1000)):
            _, position, size, done = bench.watcher.read_aheads.pop()
            assert (position, size) == expected
            connection.on_writable()  # changes nothing: the thread is not done
            assert receive(peer) == b""
            done()
            while not bench.watcher.read_aheads and (bench.watcher.writing[connection] or receive_into(peer)):
                received += receive(peer)
                connection.on_writable()
            received += receive(peer)
    assert split(received) == [content, b"e"]
    assert file_slice.released == 1
    assert probed == [(0, SEND_PER_TURN), (SEND_PER_TURN, 1000)]


def receive_into(sock: socket.socket) -> bool:
    """Whether bytes can be received."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_a_connection_closed_while_reading_ahead_releases_its_slice_when_the_thread_is_done(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.server.wire.send_queue.is_in_page_cache", lambda *_: False)
    bench = make_bench()
    slices = [Slice(-1, 0, 9, content=b"123456789", is_hot_tail=False) for _ in range(2)]
    waiting = iter(slices)
    bench.handler.make_slice = lambda body: next(waiting)
    connection, peer = bench.connect()
    peer.sendall(frame(b"s") * 2)
    bench.in_run(connection.on_readable)
    connection.close()
    assert [file_slice.released for file_slice in slices] == [0, 1]
    ((_, _, _, done),) = bench.watcher.read_aheads
    done()
    assert [file_slice.released for file_slice in slices] == [1, 1]
