"""Parses and formats HOST:PORT addresses. IPv6 hosts are written in brackets."""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.config.endpoints import format_address
from kbroker.errors import UserError

__all__ = ["DEFAULT_PORT", "Address", "parse_addresses"]

DEFAULT_PORT: Final = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return format_address(self.host, self.port)


def parse_addresses(text: str) -> list[Address]:
    """Parses one or more addresses, separated by commas.

    The default port is 9092. Raises UserError if one is invalid.
    """
    return [_parse(part.strip()) for part in text.split(",")]


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not (rest == "" or rest.startswith(":")):
            raise UserError(f"'{text}' is not a valid address; expected HOST:PORT")
        port = rest[1:] if rest else str(DEFAULT_PORT)
    else:
        host, colon, port = text.partition(":")
        if not colon:
            port = str(DEFAULT_PORT)
        if ":" in port:
            raise UserError(f"'{text}' is ambiguous; write an IPv6 address as [ADDRESS]:PORT")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"'{text}' is not a valid address; expected HOST:PORT")
    return Address(host, int(port))
