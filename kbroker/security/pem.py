"""Blocks of PEM text: certificates and private keys. Accepts text on one line, as it stands in a properties file."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["PemBlock", "encode_pem", "is_pem", "read_certificates", "read_key", "split_pem"]

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*(.*?)\s*-----END \1-----", re.DOTALL)
_HEADER: Final = re.compile(r"^[A-Za-z-]+:[^\n]*\n(?:[ \t][^\n]*\n)*", re.MULTILINE)
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
_LINE: Final = 64


class PemBlock(NamedTuple):
    label: str
    text: str
    """The block with its first and last line, on lines of 64 characters."""

    def __repr__(self) -> str:
        return f"PemBlock({self.label})"  # the text may be a key


def is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def split_pem(text: str) -> list[PemBlock]:
    """Returns the blocks of a text. Everything between them is left out."""
    return [PemBlock(found[1], _wrap(found[1], found[2])) for found in _BLOCK.finditer(text)]


def _wrap(label: str, body: str) -> str:
    # Keys in OpenSSL's old encryption have headers, which must stay on lines of their own.
    headers = "".join(_HEADER.findall(f"{body}\n"))
    payload = "".join(_HEADER.sub("", f"{body}\n").split())
    lines = [payload[start : start + _LINE] for start in range(0, len(payload), _LINE)]
    return "\n".join(
        [f"-----BEGIN {label}-----", *([headers] if headers else []), *lines, f"-----END {label}-----", ""]
    )


def encode_pem(label: str, content: bytes) -> str:
    return _wrap(label, base64.b64encode(content).decode())


def read_key(text: str) -> PemBlock | None:
    """Returns the first private key of a text, or None."""
    return next((block for block in split_pem(text) if block.label.endswith("PRIVATE KEY")), None)


def read_certificates(text: str) -> list[bytes]:
    """Returns the certificates of a text in DER. Raises ValueError if one is not base64."""
    return [_decode(block) for block in split_pem(text) if block.label in _CERTIFICATES]


def _decode(block: PemBlock) -> bytes:
    lines: Iterable[str] = block.text.splitlines()[1:-1]
    try:
        return base64.b64decode("".join(lines), validate=True)
    except binascii.Error as problem:
        raise ValueError(f"a certificate is not base64: {problem}") from None
