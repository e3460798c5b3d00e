"""One decoded request and the way back for its answer. Knows nothing of what the request means."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.protocol.compiler.load import Decode, Encode
from kbroker.protocol.registry import Api
from kbroker.server.request_slot import RequestSlot

if TYPE_CHECKING:
    from kbroker.server.context import Context

__all__ = ["Handler", "Request", "Route"]

_PLAIN_HEADER = struct.Struct(">ii").pack
_FLEXIBLE_HEADER = struct.Struct(">iix").pack  # the pad byte is an empty tag section

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


class Request:
    """`body` is the decoded message; its records are views that end with the handler's call."""

    __slots__ = ("body", "client_id", "correlation_id", "route", "slot")

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
        parts: list[Any] = [b""]
        route.encode(response, parts)
        size = sum(map(len, parts))
        if route.has_flexible_header:
            parts[0] = _FLEXIBLE_HEADER(size + 5, self.correlation_id)
        else:
            parts[0] = _PLAIN_HEADER(size + 4, self.correlation_id)
        self.slot.complete(parts if route.holds_slices else (b"".join(parts),))

    def fail(self, error: Exception) -> None:
        """What went wrong after the handler had returned, as if it had gone wrong in it."""
        self.route.fail(self, error)

    def reply_nothing(self) -> None:
        """acks=0: the client does not wait for an answer."""
        self.slot.complete(())
