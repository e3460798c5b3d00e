"""A small HTTP/1.1 server for monitors: one request for each connection, everything bounded.

Requests by size and time, connections by number: over it they are closed. A bug in a page is a 500 and a line in the
log; nothing that a client does here reaches the broker.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import trio

from kbroker.web.http_request import HEAD_END, MAX_HEAD_BYTES, BadRequest, HttpRequest, parse_head

__all__ = ["Answer", "HttpServer", "Page"]

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
REQUEST_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
# A body that nobody asked for is read for so long before closing: a reset would take the answer with it.
LINGER_SECONDS: Final = 1.0
LINGER_READS: Final = 16

_TEXT: Final = "text/plain; charset=utf-8"
_METHODS: Final = ("GET", "HEAD")


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = _TEXT


Page = Callable[[], Awaitable[Answer]]


class HttpServer:
    def __init__(self, pages: Mapping[str, Page], *, max_connections: int = MAX_CONNECTIONS) -> None:
        self._pages = pages
        self._max_connections = max_connections
        self._open = 0

    async def run(self, sockets: Iterable[socket.socket]) -> None:
        """Until it is cancelled."""
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._open >= self._max_connections:
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await self._answer_one(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)

    async def _answer_one(self, stream: trio.SocketStream) -> None:
        head: bytes | None = None
        with trio.move_on_after(REQUEST_SECONDS):
            head = await _read_head(stream)
        if head is None:
            return
        with trio.move_on_after(ANSWER_SECONDS) as scope:
            await stream.send_all(await self._response(head))
            await stream.send_eof()
        if not scope.cancelled_caught:
            with trio.move_on_after(LINGER_SECONDS):
                for _ in range(LINGER_READS):
                    if not await stream.receive_some(65536):
                        return

    async def _response(self, head: bytes) -> bytes:
        try:
            request = parse_head(head)
            page = self._find(request)
            answer = await page()
        except BadRequest as problem:
            return _encode(Answer(problem.status, f"{problem.reason}\n".encode()))
        except Exception:
            logger.exception("a page of the monitor met a bug")
            return _encode(Answer(500, b"a bug; its traceback is in the broker's log\n"))
        return _encode(answer, has_body=request.method != "HEAD")

    def _find(self, request: HttpRequest) -> Page:
        page = self._pages.get(request.path)
        if page is None:
            raise BadRequest(404, f"there is {', '.join(self._pages)}")
        if request.method not in _METHODS:
            raise BadRequest(405, "pages can only be read")
        return page


async def _read_head(stream: trio.SocketStream) -> bytes | None:
    """What stands before the empty line; None if the other side has gone, or sends without end."""
    buffer = bytearray()
    while HEAD_END not in buffer:
        if len(buffer) > MAX_HEAD_BYTES:
            return None
        data = await stream.receive_some(4096)
        if not data:
            return None
        buffer += data
    return bytes(buffer.partition(HEAD_END)[0])


def _encode(answer: Answer, *, has_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"Allow: {', '.join(_METHODS)}")
    head = "\r\n".join(lines).encode("latin-1") + HEAD_END
    return head + answer.body if has_body else head
