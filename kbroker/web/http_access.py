"""Decides who may read the HTTP endpoints: a bearer token, a client certificate, or any client if neither is set.

The token comes from a file or from the environment, never from an argument or a property: other users of the machine
see arguments, and DescribeConfigs shows properties. Only its hash is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from typing import Final, NamedTuple

from kbroker.config.broker import BrokerConfig
from kbroker.config.listener import listener_config
from kbroker.errors import UserError
from kbroker.security.private_files import check_private

__all__ = ["OPEN", "TOKEN_VARIABLE", "HttpAccess", "HttpToken", "find_token", "http_access"]

TOKEN_VARIABLE: Final = "KBROKER_METRICS_TOKEN"
LISTENER: Final = "metrics"
"""Prefix of the TLS configs of the endpoints: listener.name.metrics.ssl.keystore.location."""
_TOKEN_FILE: Final = "kbroker.metrics.token.file"
# Guessing a shorter token over the network would be possible.
_MIN_TOKEN_BYTES: Final = 16


class HttpToken:
    """The hash of a token. Comparing hashes takes the same time for all wrong tokens, of any length."""

    def __init__(self, text: str, source: str) -> None:
        """Raises UserError, which names the source and not the token, if the token is unsuitable."""
        if len(text) < _MIN_TOKEN_BYTES or not text.isascii() or not text.isprintable() or " " in text:
            raise UserError(
                f"The token in {source} must have at least {_MIN_TOKEN_BYTES} printable ASCII characters and no "
                "blanks. Make one: openssl rand -hex 32"
            )
        self._digest = hashlib.sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return "HttpToken([hidden])"

    def equals(self, given: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._digest)


class HttpAccess(NamedTuple):
    """Describes what a client must show: the token, or a certificate that TLS has verified. One is enough."""

    token: HttpToken | None = None
    tls: ssl.SSLContext | None = None
    """None for plain HTTP."""

    @property
    def is_restricted(self) -> bool:
        return self.token is not None or (self.tls is not None and self.tls.verify_mode is not ssl.CERT_NONE)

    def admits(self, given: bytes | None, *, has_certificate: bool) -> bool:
        """Whether a request may read all pages. `given`: its token, if it has one."""
        if not self.is_restricted or has_certificate:
            return True
        return self.token is not None and given is not None and self.token.equals(given)


OPEN: Final = HttpAccess()
"""Plain HTTP, for any client."""


def find_token(file: str | None) -> HttpToken | None:
    """Returns the token of the file or of the environment; None if neither is set. Raises UserError if it is bad."""
    variable = os.environ.get(TOKEN_VARIABLE)
    if file and variable is not None:
        raise UserError(f"Set either {_TOKEN_FILE} or {TOKEN_VARIABLE}, not both")
    if variable is not None:
        return HttpToken(variable, TOKEN_VARIABLE)
    if not file:
        return None
    check_private(file, "the token")
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return HttpToken(opened.readline().rstrip("\r\n"), file)
    except OSError as problem:
        raise UserError(f"Could not read {_TOKEN_FILE}={file}: {problem.strerror}") from None


def http_access(config: BrokerConfig) -> HttpAccess:
    """Returns the access of the broker's endpoints. Raises UserError if the token is bad, or TLS has no key."""
    return HttpAccess(find_token(config.kbroker_metrics_token_file), _tls(config))


def _tls(config: BrokerConfig) -> ssl.SSLContext | None:
    # With the rules of SASL_SSL: ssl.client.auth without prefix is meant for Kafka's listeners, not for these.
    tls_config = listener_config(config.texts, LISTENER, security_protocol="SASL_SSL")
    if config.kbroker_metrics_security_protocol == "PLAINTEXT":
        if tls_config.ssl_client_auth != "none":
            raise UserError(
                f"listener.name.{LISTENER}.ssl.client.auth is set, but kbroker.metrics.security.protocol is not SSL"
            )
        return None
    from kbroker.security.key_stores import load_key_material
    from kbroker.security.tls_context import server_context

    keys = load_key_material(tls_config)
    if keys is None:
        raise UserError(
            "kbroker.metrics.security.protocol=SSL needs a key: set ssl.keystore.location, or "
            f"listener.name.{LISTENER}.ssl.keystore.location for the HTTP endpoints only"
        )
    return server_context(tls_config, keys)
