"""Small HTTP/1.1 server for monitoring: one request per connection.

Limits request size, request time and the number of connections. A new connection over the limit closes the one that has
waited longest for its request, or for the client to close after the response: silent clients exclude no others. Some
connections are reserved for quick pages, whose small responses a client cannot hold up. An exception in a page is
logged and answered with status 500; clients of this server cannot affect the broker.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

import trio

from kbroker.web.http_access import OPEN, HttpAccess
from kbroker.web.http_request import HEAD_END, MAX_HEAD_BYTES, BadRequest, HttpRequest, parse_head

__all__ = ["HttpResponse", "HttpServer", "Page"]

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
QUICK_SHARE: Final = 4  # one of so many connections is reserved for quick pages
REQUEST_SECONDS: Final = 5.0
RESPONSE_SECONDS: Final = 30.0
# Limits for reading an unwanted request body before closing: closing with unread bytes sends a TCP reset, and the
# client may lose the response.
LINGER_SECONDS: Final = 1.0
LINGER_READS: Final = 16

_TEXT: Final = "text/plain; charset=utf-8"
_METHODS: Final = ("GET", "HEAD")


class HttpResponse(NamedTuple):
    status: int
    body: bytes
    content_type: str = _TEXT


Page = Callable[[], Awaitable[HttpResponse]]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_NO_PAGES: Final[Mapping[str, Page]] = MappingProxyType({})


class HttpServer:
    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        quick: Container[str] = (),
        public: Mapping[str, Page] = _NO_PAGES,
        access: HttpAccess = OPEN,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`quick` contains the paths of pages that do not wait and have small responses.

        `public` has the pages for clients without access. They may tell less than the pages of the same path.
        """
        self._pages = pages
        self._public = public
        self._access = access
        self._quick = quick
        self._max_connections = max_connections
        self._max_slow = max_connections - max_connections // QUICK_SHARE
        self._open = 0
        self._slow = 0  # connections with a request for a page that is not quick
        self._closable: dict[trio.CancelScope, None] = {}  # connections that wait for their client, the oldest first

    async def run(self, sockets: Iterable[socket.socket]) -> None:
        """Serves until cancelled."""
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._open >= self._max_connections and not self._close_oldest():
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            await self._handle_request(self._encrypted(stream))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)

    def _encrypted(self, stream: trio.SocketStream) -> Stream:
        """Returns the stream of the request. With TLS its first read does the handshake, within REQUEST_SECONDS."""
        tls = self._access.tls
        return stream if tls is None else trio.SSLStream(stream, tls, server_side=True, https_compatible=True)

    def _close_oldest(self) -> bool:
        """Closes the connection that has waited longest for its client. Returns False if none waits."""
        for scope in self._closable:
            del self._closable[scope]  # now, not when its task runs: the next call must find another one
            scope.cancel()
            return True
        return False

    @contextmanager
    def _waiting_for_client(self, seconds: float) -> Iterator[None]:
        with trio.move_on_after(seconds) as scope:
            self._closable[scope] = None
            try:
                yield
            finally:
                self._closable.pop(scope, None)

    async def _handle_request(self, stream: Stream) -> None:
        head: bytes | None = None
        with self._waiting_for_client(REQUEST_SECONDS):
            head = await _read_head(stream)
        if head is None:
            return
        with trio.move_on_after(RESPONSE_SECONDS) as scope:
            await self._respond(stream, head)
            if isinstance(stream, trio.SocketStream):
                await stream.send_eof()  # TLS cannot: its client knows the end by Content-Length
        if not scope.cancelled_caught:
            with self._waiting_for_client(LINGER_SECONDS):
                for _ in range(LINGER_READS):
                    if not await stream.receive_some(65536):
                        return

    async def _respond(self, stream: Stream, head: bytes) -> None:
        try:
            request = parse_head(head)
            page = self._find(request, has_certificate=_has_certificate(stream))
            is_slow = request.path not in self._quick
            if is_slow and self._slow >= self._max_slow:
                raise BadRequest(503, "Too many requests are being answered")
        except BadRequest as problem:
            await stream.send_all(_encode(HttpResponse(problem.status, f"{problem.reason}\n".encode())))
            return
        self._slow += is_slow
        try:
            response = await _read_page(page)
            await stream.send_all(_encode(response, has_body=request.method != "HEAD"))
        finally:
            self._slow -= is_slow

    def _find(self, request: HttpRequest, *, has_certificate: bool) -> Page:
        page = self._pages.get(request.path)
        if page is None:
            raise BadRequest(404, f"Not found. Available: {', '.join(self._pages)}")
        if request.method not in _METHODS:
            raise BadRequest(405, "Only GET and HEAD are supported")
        if self._access.admits(request.token, has_certificate=has_certificate):
            return page
        public = self._public.get(request.path)
        if public is None:
            raise BadRequest(401, "This page needs a token or a client certificate")
        return public


async def _read_page(page: Page) -> HttpResponse:
    try:
        return await page()
    except Exception:
        logger.exception("Unexpected error handling an HTTP request")
        return HttpResponse(500, b"Internal error; the broker's log has the traceback.\n")


def _has_certificate(stream: Stream) -> bool:
    """Whether the client has shown a certificate. A wrong one ends the handshake."""
    return isinstance(stream, trio.SSLStream) and stream.getpeercert(binary_form=True) is not None


async def _read_head(stream: Stream) -> bytes | None:
    """Returns the bytes before the empty line; None if the client disconnects or exceeds MAX_HEAD_BYTES."""
    buffer = bytearray()
    while HEAD_END not in buffer:
        if len(buffer) > MAX_HEAD_BYTES:
            return None
        data = await stream.receive_some(4096)
        if not data:
            return None
        buffer += data
    return bytes(buffer.partition(HEAD_END)[0])


def _encode(response: HttpResponse, *, has_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"Allow: {', '.join(_METHODS)}")
    if response.status == HTTPStatus.UNAUTHORIZED:
        lines.append('WWW-Authenticate: Bearer realm="kbroker"')
    head = "\r\n".join(lines).encode("latin-1") + HEAD_END
    return head + response.body if has_body else head
