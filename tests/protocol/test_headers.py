"""Request and response headers, byte by byte."""

from __future__ import annotations

import pytest

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import (
    REQUEST_HEADER,
    RESPONSE_HEADER,
    request_header_version,
    response_header_version,
)
from kbroker.protocol.versions import NEVER

START = b"\x00\x12\x00\x03\x00\x00\x00\x07"


def request(client_id: str | None = None) -> object:
    return REQUEST_HEADER(request_api_key=18, request_api_version=3, correlation_id=7, client_id=client_id)


@pytest.mark.parametrize(
    ("version", "client_id", "data"),
    [
        (0, None, START),
        (1, None, START + b"\xff\xff"),
        (1, "", START + b"\x00\x00"),
        (1, "rdkafka", START + b"\x00\x07rdkafka"),
        (2, None, START + b"\xff\xff\x00"),
        (2, "rdkafka", START + b"\x00\x07rdkafka\x00"),
    ],
)
def test_request_headers(version: int, client_id: str | None, data: bytes) -> None:
    value = request(client_id if version else "")
    assert codec(REQUEST_HEADER, version).to_bytes(value) == data
    assert codec(REQUEST_HEADER, version).decode(data) == (value, len(data))


def test_the_client_id_never_has_a_compact_length() -> None:
    """A broker reads the header of an ApiVersions request that it does not know the version of."""
    data = codec(REQUEST_HEADER, 2).to_bytes(request("x" * 300))
    assert data == START + b"\x01\x2c" + b"x" * 300 + b"\x00"


def test_tagged_fields_of_a_header_are_skipped() -> None:
    data = START + b"\xff\xff" + b"\x01\x05\x03abc"
    assert codec(REQUEST_HEADER, 2).decode(data + b"body") == (request(), len(data))


def test_a_header_with_very_many_tagged_fields_is_refused() -> None:
    for count, is_accepted in ((1_000, True), (1_001, False)):
        data = START + b"\xff\xff" + bytes((0x80 | count & 0x7F, count >> 7)) + b"\x05\x00" * count
        if is_accepted:
            assert codec(REQUEST_HEADER, 2).decode(data) == (request(), len(data))
        else:
            with pytest.raises(PeerError, match="1001 unknown tagged fields"):
                codec(REQUEST_HEADER, 2).decode(data)


def test_response_headers() -> None:
    value = RESPONSE_HEADER(correlation_id=-2)
    assert codec(RESPONSE_HEADER, 0).to_bytes(value) == b"\xff\xff\xff\xfe"
    assert codec(RESPONSE_HEADER, 1).to_bytes(value) == b"\xff\xff\xff\xfe\x00"
    assert codec(RESPONSE_HEADER, 1).decode(b"\xff\xff\xff\xfe\x01\x09\x00") == (value, 7)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_header_that_is_cut_is_refused(version: int) -> None:
    whole = codec(REQUEST_HEADER, version).to_bytes(request("client"))
    for cut in range(len(whole)):
        with pytest.raises(PeerError):
            codec(REQUEST_HEADER, version).decode(whole[:cut])


def test_header_versions_follow_the_first_flexible_version() -> None:
    assert [request_header_version(0, version, flexible_since=9) for version in (0, 8, 9, 13)] == [1, 1, 2, 2]
    assert [response_header_version(0, version, flexible_since=9) for version in (0, 8, 9, 13)] == [0, 0, 1, 1]
    assert request_header_version(17, 1, flexible_since=NEVER) == 1
    assert response_header_version(17, 1, flexible_since=NEVER) == 0
