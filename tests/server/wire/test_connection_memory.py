"""Connections that hold memory: idle ones, and those for whose memory others wait."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.server.toy_protocol import frame, split
from tests.server.wire_bench import Bench, receive


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
