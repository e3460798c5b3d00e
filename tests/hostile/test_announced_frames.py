"""Frames that are announced and do not arrive: they hold no memory that others need."""

from __future__ import annotations

import socket
import struct

import pytest

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.connection_limits import ConnectionLimits
from tests.server.toy_protocol import frame, split
from tests.server.wire_bench import Bench, receive

MB = 1024 * 1024


def turns_until_answered(bench: Bench, peer: socket.socket, body: bytes) -> int:
    """Sends one request and returns the turns of the loop until its response arrives."""
    peer.sendall(frame(body))
    for turn in range(1, 100):
        bench.turn()
        if answer := receive(peer):
            assert split(answer) == [body]
            return turn
    raise AssertionError("the canary got no response")


@pytest.mark.parametrize("attackers", [3, 30, 300])
def test_announcements_of_100_mb_do_not_delay_a_produce_of_20_kb(bench: Bench, attackers: int) -> None:
    for _ in range(attackers):
        _, peer = bench.connect()
        peer.sendall(struct.pack(">i", 100 * MB) + b"ab")
    bench.turn()
    assert bench.network.budget.used == 0
    _, canary = bench.connect()
    assert turns_until_answered(bench, canary, b"e" * 20_000) <= 2  # a full base buffer, and the rest


def test_frames_of_which_a_part_has_arrived_hold_a_few_times_that_part(bench: Bench) -> None:
    arrived = 0
    for _ in range(100):
        _, peer = bench.connect()
        peer.sendall(struct.pack(">i", 100 * MB) + bytes(70_000))
        arrived += 70_004
    while bench.turn() or arrived_bytes(bench) < arrived:
        pass
    assert bench.network.budget.used <= 5 * arrived
    _, canary = bench.connect()
    assert turns_until_answered(bench, canary, b"e" * 20_000) <= 2


def test_a_budget_that_is_really_used_up_still_serves_small_frames(bench: Bench) -> None:
    fill_budget(bench)
    _, large = bench.connect()
    large.sendall(frame(bytes(MB))[:200_000])
    for _ in range(5):
        bench.turn()
    assert bench.network.budget.longest_wait(bench.network.now) is not None
    _, canary = bench.connect()
    assert turns_until_answered(bench, canary, b"e" * 20_000) <= 2
    assert bench.network.budget.used <= bench.network.budget.limit


def fill_budget(bench: Bench) -> None:
    """Opens connections that send all but the end of frames of 1 MB, until one of them waits for memory."""
    is_waiting = False
    while not is_waiting:
        connection, peer = bench.connect()
        is_waiting = not send_all_but_the_end(bench, connection, peer)


def send_all_but_the_end(bench: Bench, connection: Connection, peer: socket.socket) -> bool:
    """Returns False if the connection waits for memory before all has arrived."""
    stream = frame(bytes(MB))[:-1]
    position = 0
    while position < len(stream):
        position += peer.send(stream[position : position + 100_000])
        while connection.reader.held_bytes < position:
            bench.in_run(connection.on_readable)
            if not connection.is_reading:
                return False
    return True


def test_frames_that_all_hold_a_part_of_what_they_need_complete_one_after_the_other() -> None:
    bench = Bench(ConnectionLimits(queued_max_request_bytes=4 * MB), portable=False)
    body = b"n" * (3 * MB)
    senders = [(*bench.connect(), 0) for _ in range(20)]
    while senders:
        before = bench.handler.handled, arrived_bytes(bench)
        remaining = []
        for connection, peer, position in senders:
            try:
                sent = peer.send(frame(body)[position : position + 200_000])
            except BlockingIOError:
                sent = 0
            if position + sent < len(body) + 4:
                remaining.append((connection, peer, position + sent))
        senders = remaining
        bench.turn()
        assert (bench.handler.handled, arrived_bytes(bench)) != before, "frames wait for each other"
        assert bench.network.budget.used <= 4 * MB + len(body) + 64 * 1024
    while bench.turn() or arrived_bytes(bench):
        pass
    assert bench.handler.handled == 20
    bench.close()


def arrived_bytes(bench: Bench) -> int:
    return sum(connection.reader.held_bytes for connection in bench.network.connections)
