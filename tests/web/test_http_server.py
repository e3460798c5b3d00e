"""HTTP server over real sockets: answers, refuses, enforces limits, survives exceptions in pages."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.web.http_request import MAX_HEAD_BYTES
from kbroker.web.http_server import REQUEST_SECONDS, RESPONSE_SECONDS, HttpResponse, HttpServer
from tests.web.http_client import exchange, read_all

HOST = b"Host: monitor\r\n\r\n"
Serve = Callable[..., Awaitable[int]]


async def greet() -> HttpResponse:
    return HttpResponse(200, b"hello\n")


async def fail() -> NoReturn:
    raise ZeroDivisionError


async def hang() -> NoReturn:
    await trio.sleep_forever()


PAGES = {"/": greet, "/bug": fail, "/slow": hang}


@pytest.fixture
def serve(nursery: trio.Nursery) -> Serve:
    async def start(*, max_connections: int = 4) -> int:
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        nursery.start_soon(HttpServer(PAGES, max_connections=max_connections).run, [sock])
        port: int = sock.getsockname()[1]
        return port

    return start


async def test_a_page_is_sent_and_the_connection_closed(serve: Serve) -> None:
    assert await exchange(await serve(), b"GET / HTTP/1.1\r\n" + HOST) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 6\r\n"
        b"Cache-Control: no-store\r\nConnection: close\r\n\r\nhello\n"
    )


async def test_a_request_may_come_in_pieces(serve: Serve) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", await serve()) as stream:
        for piece in (b"GET / HT", b"TP/1.1\r\nHost: a\r", b"\n\r", b"\n"):
            await stream.send_all(piece)
            await wait_all_tasks_blocked(0.001)
        assert (await read_all(stream)).endswith(b"\r\n\r\nhello\n")


async def test_head_gets_no_body_but_its_length(serve: Serve) -> None:
    answer = await exchange(await serve(), b"HEAD / HTTP/1.1\r\n" + HOST)
    assert b"Content-Length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n" + HOST, b"404 Not Found"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n" + HOST + b"abc", b"405 Method Not Allowed"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/3.0\r\n" + HOST, b"505 HTTP Version Not Supported"),
    ],
)
async def test_an_unsupported_request_gets_a_status(serve: Serve, request_: bytes, status: bytes) -> None:
    answer = await exchange(await serve(), request_)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert (b"\r\nAllow: GET, HEAD\r\n" in answer) == (status[:3] == b"405")


async def test_a_head_without_end_closes_the_connection(serve: Serve) -> None:
    assert await exchange(await serve(), b"GET / HTTP/1.1\r\nHost: " + b"a" * (MAX_HEAD_BYTES + 4096)) == b""


async def test_an_exception_in_a_page_is_a_500_and_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    port = await serve()
    assert (await exchange(port, b"GET /bug HTTP/1.1\r\n" + HOST)).startswith(b"HTTP/1.1 500 ")
    assert caplog.records[0].exc_info is not None
    assert (await exchange(port, b"GET / HTTP/1.1\r\n" + HOST)).startswith(b"HTTP/1.1 200 ")


async def test_a_silent_client_is_closed_after_some_seconds(serve: Serve, autojump_clock: MockClock) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", await serve()) as silent:
        began = trio.current_time()
        assert await read_all(silent) == b""
        assert trio.current_time() - began <= REQUEST_SECONDS


async def test_a_client_over_the_limit_gets_the_connection_of_a_silent_one(serve: Serve) -> None:
    port = await serve(max_connections=2)
    async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
        await wait_all_tasks_blocked(0.001)
        async with await trio.open_tcp_stream("127.0.0.1", port) as younger:
            await wait_all_tasks_blocked(0.001)
            assert (await exchange(port, b"GET / HTTP/1.1\r\n" + HOST)).endswith(b"hello\n")
            assert await read_all(silent) == b""
            await younger.send_all(b"GET / HTTP/1.1\r\n" + HOST)
            assert (await read_all(younger)).endswith(b"hello\n")


async def test_a_client_is_refused_if_all_connections_are_being_answered(
    serve: Serve, autojump_clock: MockClock
) -> None:
    port = await serve(max_connections=1)
    async with await trio.open_tcp_stream("127.0.0.1", port) as waiting:
        await waiting.send_all(b"GET /slow HTTP/1.1\r\n" + HOST)
        await wait_all_tasks_blocked(0.001)
        assert await exchange(port, b"GET / HTTP/1.1\r\n" + HOST) == b""


async def test_a_page_that_never_ends_is_closed(serve: Serve, autojump_clock: MockClock) -> None:
    began = trio.current_time()
    assert await exchange(await serve(), b"GET /slow HTTP/1.1\r\n" + HOST) == b""
    assert trio.current_time() - began >= RESPONSE_SECONDS


async def test_a_client_that_disconnects_does_not_affect_others(serve: Serve) -> None:
    port = await serve(max_connections=2)
    for _ in range(10):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET / HT")
        await stream.aclose()
        await wait_all_tasks_blocked(0.001)
    assert (await exchange(port, b"GET / HTTP/1.1\r\n" + HOST)).endswith(b"hello\n")
