"""Decoded request and the way back for its response. Does not know the meaning of any API."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kbroker.protocol.compiler.load import Decode, Encode
from kbroker.protocol.compiler.runtime import MAX_ELEMENTS
from kbroker.protocol.registry import Api
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.requests.request_times import RequestTally
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.transport import BYTES

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.quotas.request_quotas import Quotas, Usage
    from kbroker.server.requests.repeated_requests import RepeatedRequests

__all__ = ["Handler", "LongRequest", "Request", "Route", "read_request"]

_PLAIN_HEADER: Final = struct.Struct(">ii").pack
_FLEXIBLE_HEADER: Final = struct.Struct(">iix").pack  # the pad byte is an empty tag section

COPY_SIZE: Final = 16 * 1024  # up to this size, copying costs less than a second part

Handler = Callable[["Context", "Request"], Any | Awaitable[Any]]


class Route(NamedTuple):
    """Properties of one API in one version that do not depend on the request."""

    api: Api
    version: int
    decode_header: Decode
    decode: Decode
    encode: Encode
    has_flexible_header: bool
    holds_slices: bool  # the response may hold slices of files, which cannot be joined with the bytes around them
    handler: Handler
    fail: Callable[[Request, Exception], None]
    tally: RequestTally
    count_errors: Callable[[Any, dict[int, int]], None]  # counts the error codes of a response
    tally_of: Callable[[Request], RequestTally] | None = None  # None if it is `tally` for all requests
    repeated: RepeatedRequests | None = None
    quotas: Quotas | None = None  # None while no client has a quota
    max_elements: int = MAX_ELEMENTS  # of requests that are handled as soon as they arrive; others are large


class Request:
    """`body` is the decoded message. Its records are views that are valid until the end of the run."""

    __slots__ = ("began", "body", "client_id", "correlation_id", "route", "slot", "tally", "usage")

    usage: Usage  # set only if the route has quotas

    def __init__(self, route: Route, correlation_id: int, client_id: str | None, body: Any, slot: RequestSlot) -> None:
        self.route = route
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body
        self.slot = slot
        self.tally = route.tally
        self.began = route.tally.run.began  # of the run in which the request arrived

    @property
    def version(self) -> int:
        return self.route.version

    @property
    def principal(self) -> str:
        return cast(ClientSession, self.slot.connection.session).principal

    @property
    def is_with_token(self) -> bool:
        """Whether the client has logged in with a delegation token."""
        return cast(ClientSession, self.slot.connection.session).is_with_token

    @property
    def client_host(self) -> str:
        return self.slot.connection.peer_host

    @property
    def listener_name(self) -> str:
        return self.slot.connection.listener_name

    def reply(self, response: Any) -> None:
        """Encodes the response and completes the slot. Slices of files are sent without a copy."""
        self.reply_at_once(response)

    def reply_at_once(self, response: Any) -> None:
        route = self.route
        if route.quotas is not None:
            route.quotas.settle(self, response)
        route.count_errors(response, self.tally.times.errors)
        if route.holds_slices:
            parts: list[Any] = []
            route.encode(response, parts)
            self._complete(self._framed(parts))
        else:
            self.reply_encoded(self.encode(response))

    def encode(self, response: Any) -> bytes:
        """Returns the response without its header, in the version of the request."""
        parts: list[Any] = []
        self.route.encode(response, parts)
        return b"".join(parts)

    def framed(self, response: Any) -> bytes:
        """Returns the response as a frame, with its length and header. Not for responses with slices of files."""
        body = self.encode(response)
        return self._header(len(body)) + body

    def reply_encoded(self, body: bytes) -> None:
        """Completes the slot with a response from `encode`. Bypasses quotas: only for routes without quotas."""
        header = self._header(len(body))
        self._complete((header + body,) if len(body) < COPY_SIZE else (header, body))

    def reply_in_parts(self, parts: Sequence[Any]) -> None:
        """Like `reply_encoded`, for a body that is cut into parts, with slices of files between them."""
        self._complete((self._header(sum(map(len, parts))), *parts))

    def _framed(self, parts: list[Any]) -> list[Any]:
        """Returns the whole frame: slices, and the bytes between two slices joined into one part."""
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
        """Sends the error response for an exception that was raised after the handler had returned."""
        self.route.fail(self, error)

    def reply_nothing(self) -> None:
        """Completes the slot without a response (acks=0)."""
        if self.route.quotas is not None:
            self.route.quotas.settle(self, None)
        self._complete(())

    def _complete(self, parts: Sequence[Any]) -> None:
        self.slot.complete(parts)
        self.tally.on_answered(self.began)


class LongRequest(Request):
    """Request with very many elements. Its response may have as many, so it may be encoded in a thread."""

    __slots__ = ("_reply_soon",)

    def __init__(
        self,
        route: Route,
        correlation_id: int,
        client_id: str | None,
        slot: RequestSlot,
        reply_soon: Callable[[Request, Any], None],
    ) -> None:
        super().__init__(route, correlation_id, client_id, None, slot)
        self._reply_soon = reply_soon

    def reply(self, response: Any) -> None:
        self._reply_soon(self, response)


def read_request(route: Route, frame: memoryview, slot: RequestSlot, max_elements: int = MAX_ELEMENTS) -> Request:
    """Decodes a request. Raises PeerError if it is malformed, or has more elements than `max_elements`."""
    header, position = route.decode_header(frame)
    request = Request(route, header.correlation_id, header.client_id, None, slot)
    request.body, _ = route.decode(frame, position, max_elements)
    return request
