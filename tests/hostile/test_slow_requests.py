"""Clients that pipeline slow requests: a turn of a connection and a round of the loop end after some milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import trio

from kbroker.clock import SystemClock
from kbroker.server.wire.connection import FRAMES_PER_TURN, TURN_SECONDS
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.network import Network
from kbroker.server.wire.socket_server import SocketServer
from tests.server.toy_protocol import ToyHandler, frame, split
from tests.server.wire_bench import Bench, receive

COST_SECONDS = 0.001  # of each request: the tests move the clock, and take no time


class ShiftedClock(SystemClock):
    """Runs, for the watcher waits by it, and is moved forward by each request."""

    def __init__(self) -> None:
        self.shift = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift


def test_a_turn_of_slow_requests_ends_early_and_the_rest_is_handled_in_order(bench: Bench) -> None:
    connection, peer = bench.connect()

    def cost(body: bytes) -> None:
        bench.clock.seconds += COST_SECONDS

    bench.handler.on_frame = cost
    bodies = [b"e%d" % number for number in range(FRAMES_PER_TURN)]
    peer.sendall(b"".join(map(frame, bodies)))
    bench.in_run(connection.on_readable)
    assert bench.handler.handled == 4  # the clock is read after every fourth request
    assert bench.watcher.due == [connection]
    answers = split(receive(peer))
    while bench.turn():
        assert bench.handler.handled - len(answers) <= 2 * 4  # `turn` calls on_turn and on_readable
        answers += split(receive(peer))
    assert answers == bodies


def test_a_turn_ends_after_one_slow_request_of_many_bytes(bench: Bench) -> None:
    connection, peer = bench.connect()

    def cost(body: bytes) -> None:
        bench.clock.seconds += 2 * TURN_SECONDS

    bench.handler.on_frame = cost
    bodies = [b"e%d" % number + bytes(10_000) for number in range(4)]
    for body in bodies:
        peer.sendall(frame(body))
    answers: list[bytes] = []
    while len(answers) < 4:
        handled = bench.handler.handled
        bench.in_run(connection.on_turn if connection.reader.is_unfinished else connection.on_readable)
        assert bench.handler.handled <= handled + 1
        answers += split(receive(peer))
    assert answers == bodies


@asynccontextmanager
async def running(handler: ToyHandler, clock: ShiftedClock) -> AsyncIterator[int]:
    """Runs a server, and yields its port."""
    server = SocketServer(Network(handler, ConnectionLimits(), clock), portable=False)
    listener = server.listen("PLAINTEXT", host="127.0.0.1", port=0)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield listener.port
            await server.stop(0)


async def test_a_small_request_waits_for_one_short_turn_of_each_other_client() -> None:
    attackers = 20
    handler, clock = ToyHandler(), ShiftedClock()
    handled: list[bytes] = []
    runs: list[int] = []

    def cost(body: bytes) -> None:
        clock.shift += COST_SECONDS
        handled.append(body[:2])

    handler.on_end_run = lambda: runs.append(len(handled))
    async with running(handler, clock) as port:
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(attackers + 1)]
        for stream in streams:  # until all are accepted
            await stream.send_all(frame(b"e"))
            await stream.receive_some()
        handler.on_frame = cost
        # Without a checkpoint: the server finds all of it in its next poll.
        for stream in streams[:-1]:
            assert stream.socket.fileno() >= 0
            stream.socket._sock.send(frame(b"ex") * 200)  # type: ignore[attr-defined]
        streams[-1].socket._sock.send(frame(b"ec"))  # type: ignore[attr-defined]
        assert split(bytes(await streams[-1].receive_some())) == [b"ec"]
        before_canary = handled.index(b"ec")
        # Every other client has had a turn of four requests, and less than half of the time is for second turns.
        assert before_canary <= 2 * 4 * attackers
        while len(handled) < 200 * attackers + 1:
            await trio.lowlevel.checkpoint()
        assert max(after - before for before, after in pairwise(runs)) <= (1 + 4) * 4  # one due, four ready
        for stream in streams:
            stream.socket.close()
