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
from kbroker.server.wire.connection import FRAMES_PER_TURN, Connection
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.deadlines import Deadline, Deadlines
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.send_queue import SEND_PER_TURN
from tests.server.toy_protocol import Slice, frame, split
from tests.server.wire_bench import Bench, CountingTransport, is_ended, receive


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


def test_responses_of_one_run_leave_in_one_send(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(b"".join(frame(b"e%d" % number) for number in range(20)))
    bench.in_run(connection.on_readable)
    assert split(receive(peer)) == [b"e%d" % number for number in range(20)]
    assert len(bench.transports[connection].sends) == 1


def test_fragments_of_one_byte_make_a_request(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    for byte in frame(b"e slowly"):
        assert receive(peer) == b""
        peer.sendall(bytes((byte,)))
        bench.in_run(connection.on_readable)
    assert split(receive(peer)) == [b"e slowly"]


def test_a_turn_handles_so_many_frames_and_the_rest_comes_in_the_next(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e") * (FRAMES_PER_TURN + 3))
    bench.in_run(connection.on_readable)
    assert bench.handler.handled == FRAMES_PER_TURN
    assert bench.watcher.due == [connection]
    bench.in_run(connection.on_turn)
    assert bench.handler.handled == FRAMES_PER_TURN + 3
    assert len(split(receive(peer))) == FRAMES_PER_TURN + 3


def test_responses_leave_in_the_order_of_requests_in_any_order_of_completion(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e0") + frame(b"p1") + frame(b"e2") + frame(b"p3") + frame(b"n") + frame(b"e5"))
    bench.in_run(connection.on_readable)
    assert split(receive(peer)) == [b"e0"]
    bench.handler.complete(1)
    assert receive(peer) == b""
    bench.handler.complete(0)
    assert split(receive(peer)) == [b"p1", b"e2", b"p3", b"e5"]


def test_a_slot_completed_from_elsewhere_sends_at_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    bench.in_run(connection.on_readable)
    bench.handler.complete(0)
    assert split(receive(peer)) == [b"p"]


def test_slots_filled_during_the_run_of_another_connection_leave_in_one_send(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    waiting, waiting_peer = bench.connect()
    waiting_peer.sendall(frame(b"p") * 5)
    bench.in_run(waiting.on_readable)

    other, other_peer = bench.connect()
    bench.handler.on_frame = lambda body: bench.handler.complete(int(body[1:]))
    other_peer.sendall(b"".join(frame(b"e%d" % index) for index in range(5)))
    bench.in_run(other.on_readable)
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
    bench.in_run(connection.on_readable)
    assert split(receive(peer)) == [b"p0", b"e1", b"p2"]
    assert len(bench.transports[connection].sends) == bench.handler.runs == 1
    assert {bytes(view) for view in kept} == {b"\xdb\xdb"}


@pytest.mark.parametrize("last", [b"x", b"c", b"!"])
def test_a_run_is_ended_however_its_last_frame_went(make_bench: Callable[..., Bench], last: bytes) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e") + frame(last))
    bench.call_in_run(connection, connection.on_readable)
    assert connection.is_closed
    assert bench.handler.runs == 1


def test_responses_completed_in_a_run_by_another_task_leave_in_one_send(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p") * 5)
    bench.in_run(connection.on_readable)
    bench.handler.run.begin(0.0)
    for index in range(5):
        bench.handler.complete(index)
    assert receive(peer) == b""
    bench.handler.run.end()
    assert len(split(receive(peer))) == 5
    assert len(bench.transports[connection].sends) == 1


def test_a_request_answered_twice_is_a_bug(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p") * 2)
    bench.in_run(connection.on_readable)
    bench.handler.complete(1)
    with pytest.raises(RuntimeError, match="twice"):
        bench.handler.complete(1)


def test_closing_cancels_parked_requests_once_and_late_answers_are_dropped(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p1") + frame(b"p2") + frame(b"s"))
    late, behind = Slice(-1, 0, 3, content=b"abc"), Slice(-1, 0, 3, content=b"abc")
    bench.handler.make_slice = lambda body: behind
    bench.in_run(connection.on_readable)
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


def test_a_peer_error_sends_earlier_responses_and_closes_with_one_line(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e1") + frame(b"x") + frame(b"e3"))
    bench.in_run(connection.on_readable)
    assert connection.is_closed
    assert split(receive(peer)) == [b"e1"]
    assert bench.handler.handled == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Closing connection from 10.0.0.1:5 on PLAINTEXT: the toy protocol refuses"
    ]


def test_lines_about_broken_peers_are_limited(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = make_bench()
    for _ in range(50):
        connection, peer = bench.connect()
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        bench.in_run(connection.on_readable)
        assert connection.is_closed
    assert bench.network.reports.peer_errors == 50
    assert len(caplog.records) == 10
    bench.network.sweep()
    assert caplog.records[-1].getMessage().startswith("Suppressed 40 more")


def test_a_bug_in_a_handler_ends_only_its_connection(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench()
    broken, broken_peer = bench.connect()
    sound, sound_peer = bench.connect()
    broken_peer.sendall(frame(b"!"))
    bench.call_in_run(broken, broken.on_readable)
    assert broken.is_closed
    assert "ZeroDivisionError" in caplog.text
    sound_peer.sendall(frame(b"e"))
    bench.call_in_run(sound, sound.on_readable)
    assert split(receive(sound_peer)) == [b"e"]
    assert bench.network.reports.server_errors == 1


def test_a_handler_may_close_its_connection(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"c") + frame(b"e"))
    bench.in_run(connection.on_readable)
    assert connection.is_closed
    assert bench.handler.handled == 1


def test_a_peer_that_stops_writing_still_gets_complete_responses(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"e1") + frame(b"p2"))
    peer.shutdown(socket.SHUT_WR)
    while bench.turn():
        pass
    assert split(receive(peer)) == [b"e1"]
    assert connection.is_closed
    assert bench.handler.cancelled == [b"p2"]


def test_a_peer_that_stops_writing_gets_a_long_response_to_its_end(make_bench: Callable[..., Bench]) -> None:
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
    bench.in_run(connection.on_readable)
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


def test_a_reset_closes_and_cancels(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    bench.in_run(connection.on_readable)
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
        bench.in_run(drips.on_readable)
        active_peer.sendall(frame(b"e%d" % second))
        bench.in_run(active.on_readable)
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
    for start in range(0, 300_000, 50_000):
        first_peer.sendall(frame(body)[start : start + 50_000])
        turns(bench, 4)
    second_peer.sendall(frame(body)[:100_000])
    turns(bench, 4)
    assert bench.watcher.reading[first]
    assert not bench.watcher.reading[second]
    assert second.reader.capacity < 100_000
    assert bench.network.budget.used <= 500_000

    small_peer.sendall(frame(b"e small ones still flow" + bytes(20_000)))
    turns(bench, 2)
    assert len(split(receive(small_peer))) == 1

    for peer, connection, sent in ((first_peer, first, 300_000), (second_peer, second, 100_000)):
        assert bench.watcher.reading[connection]
        for start in range(sent, 400_004, 50_000):
            peer.sendall(frame(body)[start : start + 50_000])
            turns(bench, 4)
    assert bench.handler.handled == 3
    assert not first.is_closed
    assert not second.is_closed


def turns(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.turn()


def test_frames_without_progress_are_closed_together_when_others_wait_for_memory(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(queued_max_request_bytes=1_090_000)
    stalled, waiting = [], []
    for _ in range(3):
        connection, peer = bench.connect()
        peer.sendall(frame(b"n" * 250_000)[:80_000])
        turns(bench, 4)
        stalled.append(connection)
    slow, slow_peer = bench.connect()
    slow_peer.sendall(frame(b"n" * 250_000)[:80_000])
    turns(bench, 4)
    bench.clock.seconds += 100
    bench.network.sweep()
    assert bench.watcher.forgotten == [], "no connection waits for memory"
    for _ in range(2):
        connection, peer = bench.connect()
        peer.sendall(frame(b"n" * 200_000)[:80_000])
        turns(bench, 4)
        waiting.append(connection)
    assert not any(bench.watcher.reading[connection] for connection in waiting)
    for second in range(6):
        assert bench.watcher.forgotten == []
        slow_peer.sendall(bytes(20_000))
        bench.clock.seconds += 1
        bench.network.sweep()
        turns(bench, 2)
        assert len(bench.network.connections) == (6 if second < 5 else 3)
    assert set(bench.watcher.forgotten) == set(stalled)
    assert all(bench.watcher.reading[connection] for connection in (slow, *waiting))


def test_a_peer_that_does_not_read_is_closed_when_others_wait_for_memory(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(queued_max_request_bytes=1_000_000)
    deaf, deaf_peer = bench.connect()
    deaf_peer.sendall(frame(b"b3000000"))
    bench.turn()
    waiting, waiting_peer = bench.connect()
    waiting_peer.sendall(frame(b"n" * 200_000)[:80_000])
    turns(bench, 4)
    assert not bench.watcher.reading[waiting]
    for _ in range(5):
        assert bench.watcher.forgotten == []
        bench.clock.seconds += 1
        bench.network.sweep()
    assert bench.watcher.forgotten == [deaf]
    assert bench.watcher.reading[waiting]


def test_the_largest_frame_that_does_not_complete_is_closed_when_others_wait_too_long(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(queued_max_request_bytes=600_000, max_stall_ms=100_000, max_memory_wait_ms=30_000)
    stuck = []
    for size in (120_000, 600_000):
        connection, peer = bench.connect()
        peer.sendall(frame(b"n" * size)[:100_000])
        turns(bench, 5)
        stuck.append(connection)
    waiting, waiting_peer = bench.connect()
    waiting_peer.sendall(frame(b"n" * 200_000)[:80_000])
    turns(bench, 4)
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
    bench.in_run(connection.on_readable)
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
    bench.in_run(connection.on_readable)
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
        while (due := [timer for timer in self.due if timer[0] <= end]) and (
            first := min(due, key=lambda timer: timer[0])
        ):
            self.due.remove(first)
            self.time = first[0]
            if first[1].callback is not None:
                first[1].callback()
        self.time = end


def test_a_muted_connection_sends_its_responses_and_is_read_again_afterwards(
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


# Held connections: a thread works on a request


def read_all(bench: Bench) -> None:
    while not bench.handler.handled:
        bench.turn()


def hold_at(bench: Bench, connection: Connection, body: bytes) -> None:
    """Holds the connection when the frame with this body is handled."""
    bench.handler.on_frame = lambda frame_body: connection.hold() if frame_body == body else None


def test_later_requests_of_a_held_connection_wait_and_others_go_on(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    held, client = bench.connect()
    _other, other_client = bench.connect()
    hold_at(bench, held, b"pone")
    client.sendall(frame(b"ezero") + frame(b"pone") + frame(b"etwo"))
    other_client.sendall(frame(b"eother"))
    while bench.turn():
        pass
    assert split(receive(client)) == [b"ezero"]
    assert split(receive(other_client)) == [b"eother"]
    assert bench.watcher.reading[held] is False
    bench.handler.complete(0)
    assert split(receive(client)) == [b"pone"]
    while bench.turn():
        pass
    assert bench.handler.handled == 3  # the response alone does not release it
    held.release()
    while bench.turn():
        pass
    assert split(receive(client)) == [b"etwo"]
    assert bench.watcher.reading[held] is True


def test_the_frame_of_a_held_connection_stays_whole_until_it_is_released(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    views: list[memoryview] = []
    handle = bench.handler.handle

    def keep(connection: Connection, view: memoryview, slot: RequestSlot) -> None:
        views.append(view)
        connection.hold()
        handle(connection, view, slot)

    bench.handler.handle = keep  # type: ignore[method-assign, assignment]
    connection, client = bench.connect()
    body = b"p" + os.urandom(100_000)
    client.setblocking(True)
    client.sendall(frame(body))
    read_all(bench)
    reserved = bench.network.budget.used
    assert reserved > 0
    bench.clock.seconds += 100
    bench.network.sweep()
    bench.network.sweep()
    assert bench.network.budget.used == reserved
    assert bytes(views[0]) == body
    connection.release()
    assert bytes(views[0]) != body  # poisoned, as after every run


@pytest.mark.parametrize("end", [Connection.close, Connection.finish])
def test_a_held_connection_that_ends_gives_its_memory_back_when_it_is_released(
    make_bench: Callable[..., Bench], end: Callable[[Connection], None]
) -> None:
    bench = make_bench()
    connection, client = bench.connect()
    body = b"p" + bytes(100_000)
    hold_at(bench, connection, body)
    client.setblocking(True)
    client.sendall(frame(body))
    read_all(bench)
    used = bench.network.budget.used
    end(connection)
    assert bench.network.budget.used == used > 0
    if not connection.is_closed:
        bench.handler.complete(0)
    assert connection.is_closed
    connection.release()
    assert bench.network.budget.used == 0


def test_a_held_connection_is_not_closed_for_the_memory_that_it_holds(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, client = bench.connect()
    hold_at(bench, connection, b"pone")
    client.sendall(frame(b"pone") + frame(b"p" + bytes(10_000))[:5000])
    while bench.turn():
        pass
    assert connection.stuck_bytes() == 0
    connection.release()
