"""The head of an HTTP/1.1 request, of which only method and path matter here. Pure.

Our own, and not h11: one request for each connection, no body and no header that counts leave a line to parse.
"""

from __future__ import annotations

import re
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
    """Without the query, which nothing here looks at."""


class BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_head(head: bytes) -> HttpRequest:
    """`head` ends before the empty line. BadRequest says with which status to answer."""
    first, *headers = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequest(400, "this is not a request of HTTP/1.1")
    if line[3] != b"1":
        raise BadRequest(505, "only HTTP/1.1 is spoken here")
    names = {_header_name(each) for each in headers}
    if line[4] != b"0" and b"host" not in names:
        raise BadRequest(400, "a request of HTTP/1.1 needs a Host")
    target = _ORIGIN.sub("", line[2].decode("ascii"), count=1) or "/"
    if not target.startswith("/"):
        raise BadRequest(400, "the path does not begin with /")
    return HttpRequest(line[1].decode("ascii"), target.partition("?")[0])


def _header_name(line: bytes) -> bytes:
    header = _HEADER.fullmatch(line)
    if header is None:
        raise BadRequest(400, "a header is malformed")
    return header[1].lower()
