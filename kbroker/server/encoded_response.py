"""Answers that are the same for many requests: encoded once, kept as bytes, and framed anew for each request."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.server.request import Request

__all__ = ["encode_body", "reply_encoded"]

_PLAIN_HEADER = struct.Struct(">ii").pack
_FLEXIBLE_HEADER = struct.Struct(">iix").pack  # the pad byte is an empty tag section


def encode_body(request: Request, response: Any) -> bytes:
    """The response without header, in the version of the request."""
    parts: list[Any] = []
    request.route.encode(response, parts)
    return b"".join(parts)


def reply_encoded(request: Request, body: bytes) -> None:
    """Completes the request's slot with a body from `encode_body`."""
    if request.route.has_flexible_header:
        header = _FLEXIBLE_HEADER(len(body) + 5, request.correlation_id)
    else:
        header = _PLAIN_HEADER(len(body) + 4, request.correlation_id)
    request.slot.complete((header, body))
