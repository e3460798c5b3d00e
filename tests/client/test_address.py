"""HOST:PORT in and out."""

from __future__ import annotations

import pytest

from kbroker.client.address import Address, parse_addresses
from kbroker.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9093", [Address("localhost", 9093)]),
        ("localhost", [Address("localhost", 9092)]),
        ("[::1]:9093", [Address("::1", 9093)]),
        ("[::1]", [Address("::1", 9092)]),
        ("a:1, b:2", [Address("a", 1), Address("b", 2)]),
    ],
)
def test_addresses_are_read(text: str, expected: list[Address]) -> None:
    assert parse_addresses(text) == expected


@pytest.mark.parametrize("text", ["", ":9092", "a:", "a:0", "a:65536", "a:b", "::1", "[::1", "[::1]x", "a:1,,b:2"])
def test_what_is_no_address_is_one_line(text: str) -> None:
    with pytest.raises(UserError):
        parse_addresses(text)


@pytest.mark.parametrize("text", ["localhost:9093", "[::1]:9092"])
def test_addresses_are_written_as_they_were_read(text: str) -> None:
    assert [str(address) for address in parse_addresses(text)] == [text]
