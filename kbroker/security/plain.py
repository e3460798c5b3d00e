"""SASL PLAIN (RFC 4616): one token, `[authorization id] NUL user NUL password`."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from kbroker.security.mechanism import AuthenticationFailed

__all__ = ["PlainClient", "PlainServer"]

_FAILED: Final = "Authentication failed: "
# Compared for users that do not exist, so that they take as long as others. No password equals it: it holds a NUL.
_NO_PASSWORD: Final = b"\0no such user"


class PlainServer:
    """`passwords`: the passwords of all users by name."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.is_token_login = False
        self._passwords = passwords
        self._is_done = False

    def step(self, token: bytes) -> bytes:
        if self._is_done:
            raise AuthenticationFailed("unexpected token after the exchange")
        self._is_done = True
        authorization_id, user, password = _split(token)
        if not user:
            raise _failed("username not specified")
        if not password:
            raise _failed("password not specified")
        known = self._passwords.get(user)
        expected = _NO_PASSWORD if known is None else known.encode()
        if not hmac.compare_digest(password.encode(), expected) or known is None:
            raise _failed("Invalid username or password")
        if authorization_id not in ("", user):
            raise _failed("Client requested an authorization id that is different from username")
        self.user = user
        return b""


def _split(token: bytes) -> tuple[str, str, str]:
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not UTF-8") from None
    if len(parts) != 3:
        # Kafka stops counting at 4.
        text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}"
        raise AuthenticationFailed(text, text)
    return parts[0], parts[1], parts[2]


def _failed(reason: str) -> AuthenticationFailed:
    text = _FAILED + reason
    return AuthenticationFailed(text, text)


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def first_token(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationFailed("the broker sent a challenge, which PLAIN does not have")
        return None
