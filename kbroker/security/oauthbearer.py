"""SASL OAUTHBEARER (RFC 7628): the client sends a bearer token, which the server validates.

client   n,[a=<authorization id>],^Aauth=Bearer <token>^A[<name>=<value>^A...]^A
server   empty, or for an invalid token {"status":"invalid_token"}. The client then sends ^A, and the login fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kbroker.security.json_web_token import InvalidToken, ValidateToken
from kbroker.security.mechanism import AuthenticationFailed

__all__ = ["OAuthBearerClient", "OAuthBearerServer"]

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.~+/a-zA-Z0-9]+=*)[ ]*")
_ACKNOWLEDGEMENT: Final = b"\x01"
_INVALID_TOKEN: Final = '{"status":"invalid_token"}'
# RFC 7628, 3.1: "auth" is the token, so an extension cannot have its name.
_AUTH_KEY: Final = "auth"


class OAuthBearerServer:
    def __init__(self, validate: ValidateToken) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.is_token_login = False
        self._validate = validate
        self._is_first = True
        self._failure: str | None = None  # of the token, which the client has to acknowledge

    def step(self, token: bytes) -> bytes:
        if self._failure is not None and token == _ACKNOWLEDGEMENT:
            raise AuthenticationFailed(self._failure, _INVALID_TOKEN)
        if not self._is_first:
            raise AuthenticationFailed("unexpected OAUTHBEARER message")
        self._is_first = False
        bearer, authorization_id = _parse_first(token)
        try:
            accepted = self._validate(bearer)
        except InvalidToken as problem:
            self._failure = f"invalid token: {problem}"
            return _INVALID_TOKEN.encode()
        if authorization_id not in ("", accepted.user):
            raise AuthenticationFailed(
                "the authorization id is not the principal of the token",
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({accepted.user})",
            )
        self.user, self.expires_ms = accepted.user, accepted.expires_ms
        return b""


def _parse_first(token: bytes) -> tuple[str, str]:
    """Returns the bearer token and the authorization id ("" without one)."""
    first = _FIRST.fullmatch(token.decode("ascii", "replace"))
    if first is None:
        raise AuthenticationFailed("invalid OAUTHBEARER client first message")
    pairs = [pair.partition("=")[::2] for pair in first["pairs"].split("\x01")[:-1]]
    values = dict(pairs)
    if len(values) < len(pairs) or _AUTH_KEY not in values:
        raise AuthenticationFailed("invalid OAUTHBEARER client first message: 'auth' is missing, or a key is double")
    auth = _AUTH.fullmatch(values[_AUTH_KEY])
    if auth is None or auth["scheme"].lower() != "bearer":
        raise AuthenticationFailed("invalid scheme in OAUTHBEARER client first message")
    name = first["authorization_id"] or ""
    return auth["token"], name.replace("=2C", ",").replace("=3D", "=")


class OAuthBearerClient:
    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self._token = token
        self._extensions = dict(extensions or {})

    def first_token(self) -> bytes:
        pairs = "".join(f"{name}={value}\x01" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {self._token}\x01{pairs}\x01".encode()

    def step(self, challenge: bytes) -> bytes | None:
        # The broker answers the acknowledgement with the error code of the login.
        return _ACKNOWLEDGEMENT if challenge else None
