"""Connections over a real socket pair, called by hand: no event loop, so every step is in the test's hands."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from kbroker.errors import StorageFailure
from kbroker.server.connection import FRAMES_PER_TURN, SEND_PER_TURN, Connection
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.deadlines import Deadline, Deadlines
from kbroker.server.network import Network
from kbroker.server.request_slot import RequestSlot
from kbroker.server.sendfile import SendableSlice
from kbroker.server.transport import PlainTransport, Sendable
from tests.server.toy_protocol import Slice, ToyHandler, frame, split


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


class HandWatcher:
    """Remembers what a connection wants."""

    def __init__(self) -> None:
        self.reading: dict[Connection, bool] = {}
        self.writing: dict[Connection, bool] = {}
        self.due: list[Connection] = []
        self.forgotten: list[Connection] = []
        self.read_aheads: list[tuple[SendableSlice, int, int, Callable[[], None]]] = []

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None:
        self.reading[connection] = reading
        self.writing[connection] = writing

    def call_again(self, connection: Connection) -> None:
        if connection not in self.due:
            self.due.append(connection)

    def forget(self, connection: Connection) -> None:
        assert connection.fileno() >= 0
        self.forgotten.append(connection)

    def read_ahead(self, file_slice: SendableSlice, position: int, size: int, done: Callable[[], None]) -> None:
        self.read_aheads.append((file_slice, position, size, done))


class CountingTransport(PlainTransport):
    __slots__ = ("sends",)

    def __init__(self, sock: socket.socket, *, portable: bool) -> None:
        super().__init__(sock, portable=portable)
        self.sends: list[int] = []
        self.send = self.counted(self.send)
        self.send_more = self.counted(self.send_more)

    def counted(self, send: Callable[[Sendable], int]) -> Callable[[Sendable], int]:
        def count(data: Sendable) -> int:
            sent = send(data)
            self.sends.append(sent)
            return sent

        return count


class Bench:
    """A network, and as many connections as the test opens."""

    def __init__(self, limits: ConnectionLimits, *, portable: bool) -> None:
        self.clock = FakeClock()
        self.handler = ToyHandler()
        self.network = Network(self.handler, limits, self.clock)
        self.watcher = HandWatcher()
        self.portable = portable
        self.transports: dict[Connection, CountingTransport] = {}
        self.sockets: list[socket.socket] = []

    def connect(self) -> tuple[Connection, socket.socket]:
        ours, theirs = socket.socketpair()
        transport = CountingTransport(ours, portable=self.portable)
        connection = Connection(self.network, self.watcher, transport, peer_host="10.0.0.1", peer_port=5)
        self.transports[connection] = transport
        self.watcher.reading[connection] = True
        self.watcher.writing[connection] = False
        theirs.setblocking(False)
        self.sockets += (ours, theirs)
        return connection, theirs

    def turn(self) -> bool:
        """Each connection that wants to read or write gets one turn; False when nothing moved."""
        before = self.progress()
        due, self.watcher.due = self.watcher.due, []
        for connection in due:
            connection.on_turn()
        for connection in list(self.transports):
            if not connection.is_closed and self.watcher.writing[connection]:
                connection.on_writable()
            if not connection.is_closed and self.watcher.reading[connection]:
                connection.on_readable()
        return bool(due) or self.progress() != before

    def progress(self) -> tuple[object, ...]:
        sends = sum(len(transport.sends) for transport in self.transports.values())
        return self.handler.handled, sends, len(self.watcher.forgotten)

    def close(self) -> None:
        for connection in list(self.network.connections):
            connection.close()
        for sock in self.sockets:
            sock.close()
        assert self.network.budget.used == 0, "a closed connection still holds memory"
        assert not self.network.is_joining


@pytest.fixture(params=[False, True], ids=["kernel", "portable"])
def make_bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**limits: int) -> Bench:
        bench = Bench(ConnectionLimits(poison_buffers=True, **limits), portable=request.param)  # type: ignore[arg-type]
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.close()


def receive(sock: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := sock.recv(1 << 20):
            received += chunk
    except BlockingIOError:
        pass
    return received


def is_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_responses_of_one_run_leave_in_one_send(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(b"".join(frame(b"e%d" % number) for number in range(20)))
    connection.on_readable()
    assert split(receive(peer)) == [b"e%d" % number for number in range(20)]
    assert len(bench.transports[connection].sends) == 1


def test_fragments_of_one_byte_make_a_request(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    for byte in frame(b"e slowly"):
        assert receive(peer) == b""
        peer.sendall(bytes((byte,)))
        connection.on_readable()
    assert split(receive(peer)) == [b"e slowly"]


def test_a_turn_handles_so_many_frames_and_the_rest_comes_in_the_next(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e") * (FRAMES_PER_TURN + 3))
    connection.on_readable()
    assert bench.handler.handled == FRAMES_PER_TURN
    assert bench.watcher.due == [connection]
    connection.on_turn()
    assert bench.handler.handled == FRAMES_PER_TURN + 3
    assert len(split(receive(peer))) == FRAMES_PER_TURN + 3


def test_responses_leave_in_the_order_of_requests_whoever_is_ready_first(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e0") + frame(b"p1") + frame(b"e2") + frame(b"p3") + frame(b"n") + frame(b"e5"))
    connection.on_readable()
    assert split(receive(peer)) == [b"e0"]
    bench.handler.complete(1)
    assert receive(peer) == b""
    bench.handler.complete(0)
    assert split(receive(peer)) == [b"p1", b"e2", b"p3", b"e5"]


def test_a_slot_completed_from_elsewhere_sends_at_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    connection.on_readable()
    bench.handler.complete(0)
    assert split(receive(peer)) == [b"p"]


def test_slots_filled_during_the_run_of_another_connection_leave_in_one_send(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    waiting, waiting_peer = bench.connect()
    waiting_peer.sendall(frame(b"p") * 5)
    waiting.on_readable()

    other, other_peer = bench.connect()
    bench.handler.on_frame = lambda body: bench.handler.complete(int(body[1:]))
    other_peer.sendall(b"".join(frame(b"e%d" % index) for index in range(5)))
    other.on_readable()
    assert len(split(receive(other_peer))) == len(split(receive(waiting_peer))) == 5
    assert len(bench.transports[waiting].sends) == 1


def test_slots_filled_at_the_end_of_the_run_leave_with_it_and_the_frames_are_still_whole(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    kept: list[memoryview] = []
    handle = bench.handler.handle

    def keep(connection: Connection, view: memoryview, slot: RequestSlot) -> None:
        kept.append(view)
        handle(connection, view, slot)

    def answer() -> None:
        assert [bytes(view) for view in kept] == [b"p0", b"e1", b"p2"]
        for index in range(2):
            bench.handler.complete(index)

    bench.handler.handle = keep  # type: ignore[method-assign,assignment]
    bench.handler.on_end_run = answer
    connection, peer = bench.connect()
    peer.sendall(frame(b"p0") + frame(b"e1") + frame(b"p2"))
    connection.on_readable()
    assert split(receive(peer)) == [b"p0", b"e1", b"p2"]
    assert len(bench.transports[connection].sends) == bench.handler.runs == 1
    assert {bytes(view) for view in kept} == {b"\xdb\xdb"}


@pytest.mark.parametrize("last", [b"x", b"c", b"!"])
def test_a_run_is_ended_however_its_last_frame_went(make_bench: Callable[..., Bench], last: bytes) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e") + frame(last))
    bench.network.call(connection, connection.on_readable)
    assert connection.is_closed
    assert bench.handler.runs == 1


def test_joined_sends_of_many_slots(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p") * 5)
    connection.on_readable()
    with bench.network.joined_sends():
        for index in range(5):
            bench.handler.complete(index)
        assert receive(peer) == b""
    assert len(split(receive(peer))) == 5
    assert len(bench.transports[connection].sends) == 1


def test_a_request_answered_twice_is_a_bug(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p") * 2)
    connection.on_readable()
    bench.handler.complete(1)
    with pytest.raises(RuntimeError, match="twice"):
        bench.handler.complete(1)


def test_closing_cancels_parked_requests_once_and_late_answers_are_dropped(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p1") + frame(b"p2") + frame(b"s"))
    late, behind = Slice(-1, 0, 3, content=b"abc"), Slice(-1, 0, 3, content=b"abc")
    bench.handler.make_slice = lambda body: behind
    connection.on_readable()
    bench.handler.complete(1)
    connection.close()
    connection.close()
    assert bench.handler.cancelled == [b"p1"]
    assert behind.released == 1
    slot, _ = bench.handler.parked[0]
    assert slot.is_cancelled
    slot.complete([b"too late", late])
    assert late.released == 1
    assert bench.watcher.forgotten == [connection]


def test_a_peer_error_sends_what_came_before_and_closes_with_one_line(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e1") + frame(b"x") + frame(b"e3"))
    connection.on_readable()
    assert connection.is_closed
    assert split(receive(peer)) == [b"e1"]
    assert bench.handler.handled == 2
    assert [record.getMessage() for record in caplog.records] == [
        "closing 10.0.0.1:5 on PLAINTEXT: the toy was told to refuse"
    ]


def test_lines_about_broken_peers_are_limited(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = make_bench()
    for _ in range(50):
        connection, peer = bench.connect()
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        connection.on_readable()
        assert connection.is_closed
    assert bench.network.peer_errors == 50
    assert len(caplog.records) == 10
    bench.network.sweep()
    assert caplog.records[-1].getMessage().startswith("40 more")


def test_a_bug_in_a_handler_ends_only_its_connection(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench()
    broken, broken_peer = bench.connect()
    sound, sound_peer = bench.connect()
    broken_peer.sendall(frame(b"!"))
    bench.network.call(broken, broken.on_readable)
    assert broken.is_closed
    assert "ZeroDivisionError" in caplog.text
    sound_peer.sendall(frame(b"e"))
    bench.network.call(sound, sound.on_readable)
    assert split(receive(sound_peer)) == [b"e"]
    assert bench.network.server_errors == 1


def test_a_handler_may_close_its_connection(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"c") + frame(b"e"))
    connection.on_readable()
    assert connection.is_closed
    assert bench.handler.handled == 1


def test_who_stops_writing_still_gets_what_is_complete(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e1") + frame(b"p2"))
    peer.shutdown(socket.SHUT_WR)
    while bench.turn():
        pass
    assert split(receive(peer)) == [b"e1"]
    assert connection.is_closed
    assert bench.handler.cancelled == [b"p2"]


def test_who_stops_writing_gets_a_long_response_to_its_end(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"b3000000"))
    peer.shutdown(socket.SHUT_WR)
    received = b""
    while bench.turn() or (bench.watcher.writing[connection] and not connection.is_closed):
        received += receive(peer)
    received += receive(peer)
    assert split(received) == [b"B" * 3_000_000]
    assert connection.is_closed


def test_finish_waits_for_parked_requests(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    connection.on_readable()
    connection.finish()
    assert bench.watcher.forgotten == []
    assert not bench.watcher.reading[connection]
    bench.handler.complete(0)
    assert bench.watcher.forgotten == [connection]
    assert split(receive(peer)) == [b"p"]


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
    first.on_readable()
    assert bench.watcher.reading[first]
    second_peer.sendall(frame(b"b3000000"))
    second.on_readable()
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
    connection.on_readable()
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
    connection.on_readable()
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
    assert [each.released for each in slices] == [1] * len(slices)


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
    assert [each.released for each in slices] == [1, 1, 1, 1]


def test_a_slice_that_was_truncated_away_drops_the_connection(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(20_000_000))
    with path.open("rb") as file:
        file_slice = Slice(file.fileno(), 0, 20_000_000)
        bench.handler.make_slice = lambda body: file_slice
        connection, peer = bench.connect()
        peer.sendall(frame(b"s"))
        connection.on_readable()
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
    connection.on_readable()
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
        connection.on_readable()
    content = path.read_bytes()
    assert split(receive(peer)) == [content[position : position + 300] for position in range(20)]
    assert len(bench.transports[connection].sends) == 1
    assert [each.released for each in slices] == [1] * 20


def test_the_end_of_a_response_leaves_with_its_slice(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench()
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 400)
    with path.open("rb") as file:
        bench.handler.make_slice = lambda body: Slice(file.fileno(), 0, 70_000)
        connection, peer = bench.connect()
        peer.sendall(frame(b"s") + frame(b"e") + frame(b"b1000"))
        connection.on_readable()
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
    connection.on_readable()
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

    monkeypatch.setattr("kbroker.server.connection.is_in_page_cache", is_never_cached)
    bench = make_bench()
    path = tmp_path / "log"
    content = os.urandom(SEND_PER_TURN + 1000)
    path.write_bytes(content)
    with path.open("rb") as file:
        file_slice = Slice(file.fileno(), 0, len(content), is_hot_tail=False)
        bench.handler.make_slice = lambda body: file_slice
        connection, peer = bench.connect()
        peer.sendall(frame(b"s") + frame(b"e"))
        connection.on_readable()
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
    """Whether anything is there to be received."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_a_connection_closed_while_reading_ahead_releases_its_slice_when_the_thread_is_done(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.server.connection.is_in_page_cache", lambda *_: False)
    bench = make_bench()
    slices = [Slice(-1, 0, 9, content=b"123456789", is_hot_tail=False) for _ in range(2)]
    waiting = iter(slices)
    bench.handler.make_slice = lambda body: next(waiting)
    connection, peer = bench.connect()
    peer.sendall(frame(b"s") * 2)
    connection.on_readable()
    connection.close()
    assert [each.released for each in slices] == [0, 1]
    ((_, _, _, done),) = bench.watcher.read_aheads
    done()
    assert [each.released for each in slices] == [1, 1]


def test_a_reset_closes_and_cancels(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    connection.on_readable()
    peer.close()
    bench.handler.complete(0)  # EPIPE
    assert connection.is_closed


def test_idle_connections_are_closed_and_those_that_wait_for_us_are_not(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_idle_ms=60_000)
    silent, _ = bench.connect()
    half, half_peer = bench.connect()
    half_peer.sendall(struct.pack(">i", 1000) + b"never")
    parked, parked_peer = bench.connect()
    parked_peer.sendall(frame(b"p"))
    never_reads, never_reads_peer = bench.connect()
    never_reads_peer.sendall(frame(b"b5000000"))
    active, active_peer = bench.connect()
    drips, drips_peer = bench.connect()  # one byte a second: Kafka's selector takes any byte for activity
    drips_peer.sendall(struct.pack(">i", 1000))
    bench.turn()
    for second in range(61):
        bench.clock.seconds += 1
        bench.network.sweep()
        drips_peer.sendall(b"x")
        drips.on_readable()
        active_peer.sendall(frame(b"e%d" % second))
        active.on_readable()
        if second == 50:
            assert bench.watcher.forgotten == []
    assert set(bench.watcher.forgotten) == {silent, half, never_reads}
    assert not parked.is_closed
    assert not active.is_closed
    assert not drips.is_closed


def test_an_idle_connection_gives_its_buffer_back(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    for piece in (frame(b"n" * 2_000_000)[start : start + 50_000] for start in range(0, 2_000_004, 50_000)):
        peer.sendall(piece)
        bench.turn()
    assert bench.handler.handled == 1
    assert connection.reader.capacity > 1_000_000
    for _ in range(2):
        bench.clock.seconds += 1
        bench.network.sweep()
    assert connection.reader.capacity == 0
    assert bench.network.budget.used == 0


def test_no_room_stops_reading_and_room_resumes_it(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(queued_max_request_bytes=500_000)
    first, first_peer = bench.connect()
    second, second_peer = bench.connect()
    _, small_peer = bench.connect()
    body = b"n" * 400_000
    first_peer.sendall(frame(body)[:50_000])
    bench.turn()
    bench.turn()
    second_peer.sendall(frame(body)[:50_000])
    bench.turn()
    bench.turn()
    assert bench.watcher.reading[first]
    assert not bench.watcher.reading[second]
    assert second.reader.capacity < 50_000
    assert bench.network.budget.used <= 500_000

    small_peer.sendall(frame(b"e small ones still flow"))
    bench.turn()
    assert split(receive(small_peer)) == [b"e small ones still flow"]

    for peer, connection in ((first_peer, first), (second_peer, second)):
        assert bench.watcher.reading[connection]
        for start in range(50_000, 400_004, 50_000):
            peer.sendall(frame(body)[start : start + 50_000])
            bench.turn()
            bench.turn()
    assert bench.handler.handled == 3
    assert not first.is_closed
    assert not second.is_closed


def test_the_largest_frame_that_does_not_complete_is_closed_when_others_wait_too_long(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(queued_max_request_bytes=1_000_000, max_memory_wait_ms=30_000)
    stuck = []
    for size in (300_000, 600_000):
        connection, peer = bench.connect()
        peer.sendall(frame(b"n" * size)[:20_000])
        bench.turn()
        bench.turn()
        stuck.append(connection)
    waiting, waiting_peer = bench.connect()
    waiting_peer.sendall(frame(b"n" * 200_000)[:20_000])
    bench.turn()
    bench.turn()
    assert not bench.watcher.reading[waiting]
    bench.clock.seconds += 29
    bench.network.sweep()
    assert bench.watcher.forgotten == []
    bench.clock.seconds += 1
    bench.network.sweep()
    assert bench.watcher.forgotten == [stuck[1]]
    assert bench.watcher.reading[waiting]


def test_a_hangup_while_reading_is_stopped_closes(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(max_in_flight=1)
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    connection.on_readable()
    assert not bench.watcher.reading[connection]
    peer.close()
    connection.on_hangup()
    assert connection.is_closed
    assert bench.handler.cancelled == [b"p"]


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_closes(make_bench: Callable[..., Bench], garbage: bytes) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(garbage)
    connection.on_readable()
    assert connection.is_closed
    assert is_ended(peer)
    assert bench.handler.handled == 0


class HandDeadlines:
    """Time goes on when the test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[tuple[float, Deadline]] = []

    def now(self) -> float:
        return self.time

    def add(self, seconds: float, callback: Callable[[], None]) -> Deadline:
        deadline = Deadline(callback)
        self.due.append((self.time + seconds, deadline))
        return deadline

    def pass_by(self, seconds: float) -> None:
        end = self.time + seconds
        while (due := [each for each in self.due if each[0] <= end]) and (first := min(due, key=lambda each: each[0])):
            self.due.remove(first)
            self.time = first[0]
            if first[1].callback is not None:
                first[1].callback()
        self.time = end


def test_a_muted_connection_sends_what_it_owes_and_is_read_again_when_its_time_is_over(
    make_bench: Callable[..., Bench],
) -> None:
    bench, deadlines = make_bench(), HandDeadlines()
    connection, client = bench.connect()
    bench.handler.on_frame = lambda _: connection.mute(25.0, cast(Deadlines, deadlines))
    client.sendall(frame(b"eone") + frame(b"etwo"))
    bench.turn()
    assert split(receive(client)) == [b"eone"]
    assert bench.watcher.reading[connection] is False
    deadlines.pass_by(24.9)
    bench.turn()
    assert bench.watcher.reading[connection] is False
    bench.handler.on_frame = lambda _: None
    deadlines.pass_by(0.2)
    assert bench.watcher.reading[connection] is True
    while bench.turn():
        pass
    assert split(receive(client)) == [b"etwo"]
    assert deadlines.due == []


def test_the_longest_of_several_waits_counts(make_bench: Callable[..., Bench]) -> None:
    bench, deadlines = make_bench(), HandDeadlines()
    connection, _client = bench.connect()
    for seconds in (3.0, 30.0, 1.0):
        connection.mute(seconds, cast(Deadlines, deadlines))
    deadlines.pass_by(29.0)
    assert bench.watcher.reading[connection] is False
    deadlines.pass_by(2.0)
    assert bench.watcher.reading[connection] is True


def test_a_muted_connection_that_closes_leaves_nothing_behind(make_bench: Callable[..., Bench]) -> None:
    bench, deadlines = make_bench(), HandDeadlines()
    connection, _client = bench.connect()
    connection.mute(1e9, cast(Deadlines, deadlines))
    connection.close()
    assert all(deadline.callback is None for _, deadline in deadlines.due)
    deadlines.pass_by(10.0)
    assert deadlines.due == []
    connection.mute(1.0, cast(Deadlines, deadlines))
    assert deadlines.due == []


def test_a_muted_connection_that_is_to_finish_does(make_bench: Callable[..., Bench]) -> None:
    bench, deadlines = make_bench(), HandDeadlines()
    connection, _client = bench.connect()
    connection.mute(1e9, cast(Deadlines, deadlines))
    connection.finish()
    assert connection.is_closed
