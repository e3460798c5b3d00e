"""One decoded request and the way back for its answer. Knows nothing of what the request means."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.protocol.compiler.load import Decode, Encode
from kbroker.protocol.registry import Api
from kbroker.server.request_slot import RequestSlot
from kbroker.server.transport import BYTES

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.quotas import Quotas, Usage
    from kbroker.server.repeated_requests import RepeatedRequests

__all__ = ["Handler", "Request", "Route", "read_request"]

_PLAIN_HEADER = struct.Struct(">ii").pack
_FLEXIBLE_HEADER = struct.Struct(">iix").pack  # the pad byte is an empty tag section

COPY_SIZE = 16 * 1024  # up to here one piece costs less than two

Handler = Callable[["Context", "Request"], Any | Awaitable[Any]]


class Route(NamedTuple):
    """Everything about one API in one version that does not depend on the request."""

    api: Api
    version: int
    decode_header: Decode
    decode: Decode
    encode: Encode
    has_flexible_header: bool
    holds_slices: bool  # the response may hold ranges of files, which cannot be joined with the bytes around them
    handler: Handler
    fail: Callable[[Request, Exception], None]
    tally: list[int]  # of one number: how many requests have come
    repeated: RepeatedRequests | None = None
    quotas: Quotas | None = None  # None while no client has a quota


class Request:
    """`body` is the decoded message; its records are views that end with the handler's call."""

    __slots__ = ("body", "client_id", "correlation_id", "route", "slot", "usage")

    usage: Usage  # only where the route has quotas

    def __init__(self, route: Route, correlation_id: int, client_id: str | None, body: Any, slot: RequestSlot) -> None:
        self.route = route
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body
        self.slot = slot

    @property
    def version(self) -> int:
        return self.route.version

    @property
    def principal(self) -> str:
        session = self.slot.connection.session
        return session.principal if session is not None else "User:ANONYMOUS"

    @property
    def client_host(self) -> str:
        return self.slot.connection.peer_host

    @property
    def listener_name(self) -> str:
        return self.slot.connection.listener_name

    def reply(self, response: Any) -> None:
        """Encode the response and complete the slot. Slices of files in it go out as they are."""
        route = self.route
        if route.quotas is not None:
            route.quotas.settle(self, response)
        if route.holds_slices:
            parts: list[Any] = []
            route.encode(response, parts)
            self.slot.complete(self._framed(parts))
        else:
            self.reply_encoded(self.encode(response))

    def encode(self, response: Any) -> bytes:
        """The response without its header, in the version of the request: to be kept for others like it."""
        parts: list[Any] = []
        self.route.encode(response, parts)
        return b"".join(parts)

    def reply_encoded(self, body: bytes) -> None:
        """With what `encode` made. It passes by quotas: while the route has some, an answer says so itself."""
        header = self._header(len(body))
        self.slot.complete((header + body,) if len(body) < COPY_SIZE else (header, body))

    def _framed(self, parts: list[Any]) -> list[Any]:
        """The whole frame, with the bytes before, between and behind the slices in one piece each."""
        framed: list[Any] = []
        size = start = 0
        for number, part in enumerate(parts):
            size += len(part)
            if not isinstance(part, BYTES):
                framed += (b"".join(parts[start:number]), part)
                start = number + 1
        if start < len(parts):
            framed.append(b"".join(parts[start:]))
        framed[0] = self._header(size) + framed[0]
        return framed

    def _header(self, size: int) -> bytes:
        if self.route.has_flexible_header:
            return _FLEXIBLE_HEADER(size + 5, self.correlation_id)
        return _PLAIN_HEADER(size + 4, self.correlation_id)

    def fail(self, error: Exception) -> None:
        """What went wrong after the handler had returned, as if it had gone wrong in it."""
        self.route.fail(self, error)

    def reply_nothing(self) -> None:
        """acks=0: the client does not wait for an answer."""
        if self.route.quotas is not None:
            self.route.quotas.settle(self, None)
        self.slot.complete(())


def read_request(route: Route, frame: memoryview, slot: RequestSlot) -> Request:
    header, position = route.decode_header(frame)
    request = Request(route, header.correlation_id, header.client_id, None, slot)
    request.body, _ = route.decode(frame, position)
    return request
