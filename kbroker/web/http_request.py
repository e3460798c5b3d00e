"""Parser for the head of an HTTP/1.1 request. Does no I/O.

Not h11: the server needs only method and path, reads no body, and answers one request per connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["HEAD_END", "MAX_HEAD_BYTES", "BadRequest", "HttpRequest", "parse_head"]

MAX_HEAD_BYTES: Final = 8192
HEAD_END: Final = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"(%s) ([!-~]+) HTTP/(\d)\.(\d)" % _TOKEN)
_HEADER = re.compile(rb"(%s):[ \t!-~\x80-\xff]*" % _TOKEN)
_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class HttpRequest(NamedTuple):
    method: str
    path: str
    """Path of the URL; the query string is ignored."""
    token: bytes | None = None
    """The bearer token of the header Authorization, if it has one."""

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, {self.path!r})"  # the token must not get into a log


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_head(head: bytes) -> HttpRequest:
    """Parses a head without its final empty line. Raises BadRequest, with the status to answer, if it is invalid."""
    first, *headers = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequest(400, "Not an HTTP/1.1 request")
    if line[3] != b"1":
        raise BadRequest(505, "Only HTTP/1.1 is supported")
    fields = [_header(header) for header in headers]
    if line[4] != b"0" and not any(name == b"host" for name, _ in fields):
        raise BadRequest(400, "Missing Host header")
    target = _ORIGIN.sub("", line[2].decode("ascii"), count=1) or "/"
    if not target.startswith("/"):
        raise BadRequest(400, "The path must begin with /")
    return HttpRequest(line[1].decode("ascii"), target.partition("?")[0], _bearer_token(fields))


def _header(line: bytes) -> tuple[bytes, bytes]:
    """Returns the name in lower case, and the value."""
    header = _HEADER.fullmatch(line)
    if header is None:
        raise BadRequest(400, "Malformed header")
    return header[1].lower(), line[header.end(1) + 1 :].strip()


def _bearer_token(fields: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    values = [value for name, value in fields if name == b"authorization"]
    if len(values) > 1:
        raise BadRequest(400, "More than one Authorization header")
    scheme, _, token = (values[0] if values else b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
