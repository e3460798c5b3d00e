"""Responses are read completely, in whatever pieces their bytes arrive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks.connection import FIRST_BUFFER_SIZE, Connection


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, Connection(server.getsockname()) as connection:
        peer, _ = server.accept()
        with peer:
            yield connection, peer


def test_several_responses_in_one_read_are_separated(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    peer.sendall(framed(b"one") + framed(b"two") + framed(b""))
    assert [bytes(connection.answer()) for _ in range(3)] == [b"one", b"two", b""]
    assert not connection.has_answer()


def test_a_response_in_pieces_is_joined(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    data = framed(b"first") + framed(b"second")
    peer.sendall(data[:11])
    assert bytes(connection.answer()) == b"first"
    assert not connection.has_answer()
    peer.sendall(data[11:])
    assert bytes(connection.answer()) == b"second"


def test_responses_larger_than_the_buffer_are_read_completely(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    answers = [b"a" * (FIRST_BUFFER_SIZE - 10), b"b" * (5 * FIRST_BUFFER_SIZE + 3), b"c" * 40]
    sender = threading.Thread(target=peer.sendall, args=(b"".join(map(framed, answers)),))
    sender.start()
    received = [bytes(connection.answer()) for _ in answers]
    sender.join()
    assert received == answers


def test_a_closed_connection_raises(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    peer.sendall(framed(b"half")[:6])
    peer.close()
    with pytest.raises(EOFError):
        connection.answer()
