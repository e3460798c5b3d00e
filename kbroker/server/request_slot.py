"""The place of one request's response in the order of its connection. Filled at once by the handler, or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.server.sendfile import SendableSlice
from kbroker.server.transport import BYTES, Sendable

if TYPE_CHECKING:
    from kbroker.server.connection import Connection

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
        """The whole response frame with its length in front; empty when the request wants none (acks=0).

        The slices in it belong to the connection from here on.
        """
        connection = self.connection
        if connection.is_closed:
            release_parts(parts)
            return
        if self.parts is not None:
            raise RuntimeError("a request was answered twice")
        self.parts = parts
        self.on_cancel = None
        connection.on_slot_done(self)

    def cancel(self) -> None:
        """The connection is gone."""
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
