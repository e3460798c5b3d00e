"""Names of cipher suites and TLS versions: those of Java, which Kafka's configs use, to those of OpenSSL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.errors import UserError

__all__ = ["TLS_1_3_SUITES", "openssl_name"]

TLS_1_3_SUITES: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_KEY_EXCHANGES: Final[Sequence[str]] = ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA", "DHE_DSS", "RSA")


def openssl_name(name: str) -> str:
    """Returns OpenSSL's name of a suite of TLS 1.2 or older. A name of OpenSSL stays as it is.

    Raises UserError if the name is not known.
    """
    if not name.startswith(("TLS_", "SSL_")):
        return name
    exchange, separator, cipher = name[4:].partition("_WITH_")
    if not separator or exchange not in _KEY_EXCHANGES:
        raise UserError(f"ssl.cipher.suites has the unsupported cipher suite {name}")
    prefix = "" if exchange == "RSA" else f"{exchange.replace('_', '-')}-"
    return f"{prefix}{_cipher(cipher)}"


def _cipher(name: str) -> str:
    """Returns the name of OpenSSL: AES128-GCM-SHA256 for AES_128_GCM_SHA256, AES256-SHA for AES_256_CBC_SHA."""
    if name == "CHACHA20_POLY1305_SHA256":
        return "CHACHA20-POLY1305"
    if name == "3DES_EDE_CBC_SHA":
        return "DES-CBC3-SHA"
    for family in ("AES", "CAMELLIA", "ARIA"):
        for size in ("128", "256"):
            if name.startswith(f"{family}_{size}_"):
                rest = name.removeprefix(f"{family}_{size}_").removeprefix("CBC_")
                return f"{family}{size}-{rest.replace('_', '-')}"
    return name.replace("_", "-")
