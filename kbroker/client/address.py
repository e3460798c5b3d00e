"""HOST:PORT as a person writes it and as a broker tells it. IPv6 hosts stand in brackets."""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.errors import UserError

__all__ = ["DEFAULT_PORT", "Address", "parse_addresses"]

DEFAULT_PORT: Final = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """One or several, separated by commas; a port may be left out."""
    return [_parse(part.strip()) for part in text.split(",")]


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not (rest == "" or rest.startswith(":")):
            raise UserError(f"'{text}' is not HOST:PORT")
        port = rest[1:] if rest else str(DEFAULT_PORT)
    else:
        host, colon, port = text.partition(":")
        if not colon:
            port = str(DEFAULT_PORT)
        if ":" in port:
            raise UserError(f"'{text}' is ambiguous: write an IPv6 address as [ADDRESS]:PORT")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"'{text}' is not HOST:PORT")
    return Address(host, int(port))
