"""Place of one request's response in the order of its connection. The handler completes it at once or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.server.wire.sendfile import SendableSlice
from kbroker.server.wire.transport import BYTES, Sendable

if TYPE_CHECKING:
    from kbroker.server.wire.connection import Connection

__all__ = ["RequestSlot", "ResponsePart", "release_parts"]

ResponsePart = Sendable | SendableSlice


class RequestSlot:
    """Completed exactly once, on the event loop. `on_cancel` is called once if the connection closes before that."""

    __slots__ = ("connection", "on_cancel", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: Sequence[ResponsePart] | None = None
        self.on_cancel: Callable[[], None] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.connection.is_closed

    def complete(self, parts: Sequence[ResponsePart]) -> None:
        """Hands over the whole response frame with its length in front; no parts if there is no response (acks=0).

        The connection owns the slices from here on, and releases them. Raises RuntimeError if it is called twice.
        """
        if self.parts is not None:
            if not self.is_cancelled:
                raise RuntimeError("the response of a request was completed twice")
            release_parts(parts)
            return
        self.parts = parts
        self.on_cancel = None
        self.connection.on_slot_done(self)

    def cancel(self) -> None:
        """Releases a complete response and calls `on_cancel`: the connection is closed."""
        parts, self.parts = self.parts, ()
        if parts is not None:
            release_parts(parts)
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()


def release_parts(parts: Sequence[ResponsePart]) -> None:
    for part in parts:
        if not isinstance(part, BYTES):
            part.release()
