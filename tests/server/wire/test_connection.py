"""Connections over a real socket pair, called by hand: no event loop, so every step is in the test's hands."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import pytest

from kbroker.server.wire.connection import FRAMES_PER_TURN, Connection
from kbroker.server.wire.request_slot import RequestSlot
from tests.server.toy_protocol import Slice, frame, split
from tests.server.wire_bench import Bench, is_ended, receive


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


def test_a_reset_closes_and_cancels(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    connection, peer = bench.connect()
    peer.sendall(frame(b"p"))
    bench.in_run(connection.on_readable)
    peer.close()
    bench.handler.complete(0)  # EPIPE
    assert connection.is_closed


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
