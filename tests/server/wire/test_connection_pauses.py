"""Connections that are not read for a while: muted by a quota, or held while a thread works on a request."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import pytest

from kbroker.server.wire.connection import Connection
from kbroker.server.wire.deadlines import Deadline, Deadlines
from kbroker.server.wire.request_slot import RequestSlot
from tests.server.toy_protocol import frame, split
from tests.server.wire_bench import Bench, receive


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
