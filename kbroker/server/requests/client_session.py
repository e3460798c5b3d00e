"""Per-connection state of the request layer. The connection carries it as one opaque object (`Connection.session`)."""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = ["ANONYMOUS", "ClientSession"]

ANONYMOUS: Final = "User:ANONYMOUS"
_MAX_SHAPES: Final = 32
_MAX_LIST_OFFSETS: Final = 512


class ClientSession:
    """Principal of a connection, and the shapes of its last Produce and Fetch, by which the next may be recognised.

    `is_with_token`: the client has logged in with a delegation token, so it must not get or change tokens.
    `fetch_layout` is the shape of a Fetch of several partitions or of a fetch session. `shapes_left` counts down with
    every change of a shape, `list_offsets_left` with every ListOffsets that was learnt. At 0 the connection's requests
    are no longer learnt: a client that alternates between many of them would cost a learning pass for each request.
    """

    __slots__ = (
        "fetch_layout",
        "fetch_shape",
        "is_with_token",
        "list_offsets_left",
        "principal",
        "produce_shape",
        "shapes_left",
    )

    def __init__(self) -> None:
        self.principal = ANONYMOUS
        self.is_with_token = False
        self.produce_shape: Struct | None = None
        self.fetch_shape: Struct | None = None
        self.fetch_layout: object = None  # a FetchLayout, which knows a handler: this module must not
        self.shapes_left = _MAX_SHAPES
        self.list_offsets_left = _MAX_LIST_OFFSETS
