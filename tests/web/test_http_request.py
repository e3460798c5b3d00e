"""Heads of HTTP requests: accepted requests, and the status of refused ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.web.http_request import BadRequest, HttpRequest, parse_head


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: a", HttpRequest("GET", "/metrics")),
        (b"GET /metrics HTTP/1.0", HttpRequest("GET", "/metrics")),
        (b"HEAD /readyz?verbose=1 HTTP/1.1\r\nhOsT:\r\nAccept: */*", HttpRequest("HEAD", "/readyz")),
        (b"GET http://kafka.example:9308/metrics HTTP/1.1\r\nHost: a", HttpRequest("GET", "/metrics")),
        (b"GET http://kafka.example HTTP/1.1\r\nHost: a", HttpRequest("GET", "/")),
    ],
)
def test_method_and_path_are_read(head: bytes, request_: HttpRequest) -> None:
    assert parse_head(head) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET", 400),
        (b"GET /metrics", 400),
        (b"GET  /metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/1.1", 400),  # no Host
        (b"GET metrics HTTP/1.1\r\nHost: a", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\n folded", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nno colon", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\x00", 400),
        (b"PRI * HTTP/2.0", 505),
        (b"\x00\x00\x00\x1d\x00\x12\x00\x04", 400),  # a Kafka client on the wrong port
    ],
)
def test_an_invalid_request_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.status == status


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_bad_request(head: bytes) -> None:
    with suppress(BadRequest):
        assert parse_head(head).path.startswith("/")
