"""Slow clients of the metrics port: the health pages are answered beside them."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.web.http_server import MAX_CONNECTIONS, HttpResponse, HttpServer
from tests.web.http_client import exchange

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = bytes(14_000_000)  # more than the kernel holds for a client that does not read


async def show_health() -> HttpResponse:
    return HttpResponse(200, b"ok\n")


async def show_metrics() -> HttpResponse:
    return HttpResponse(200, LARGE)


@pytest.fixture
def port(nursery: trio.Nursery, mock_clock: MockClock) -> int:
    """The clock stands still: no connection is closed because of the time."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=1000)
    sock.setblocking(False)
    server = HttpServer({"/healthz": show_health, "/metrics": show_metrics}, quick=("/healthz",))
    nursery.start_soon(server.run, [sock])
    port: int = sock.getsockname()[1]
    return port


@pytest.mark.parametrize(
    "start", [b"", b"GET /healthz HT", HEALTH, METRICS], ids=["silent", "half", "lingering", "deaf"]
)
async def test_slow_clients_do_not_shut_out_the_health_page(port: int, start: bytes) -> None:
    slow = []
    for _ in range(3 * MAX_CONNECTIONS):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if start:
            await stream.send_all(start)
        slow.append(stream)
    await wait_all_tasks_blocked(0.01)
    for _ in range(3):
        with trio.move_on_after(1):  # of a clock that stands still
            assert (await exchange(port, HEALTH)).endswith(b"ok\n")
    for stream in slow:
        await trio.aclose_forcefully(stream)


async def test_a_client_that_asks_for_metrics_beside_many_deaf_ones_is_told_so(port: int) -> None:
    deaf = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    for stream in deaf:
        await stream.send_all(METRICS)
    await wait_all_tasks_blocked(0.01)
    assert (await exchange(port, METRICS)).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    for stream in deaf[:8]:
        await trio.aclose_forcefully(stream)
    await wait_all_tasks_blocked(0.01)
    assert (await exchange(port, METRICS)).startswith(b"HTTP/1.1 200 OK\r\n")
    for stream in deaf:
        await trio.aclose_forcefully(stream)
