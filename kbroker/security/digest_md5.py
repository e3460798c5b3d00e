"""Client side of SASL DIGEST-MD5 (RFC 2831): Java's clients log in at ZooKeeper with a password by this mechanism.

The server sends a challenge: realm="zk-sasl-md5",nonce="...",charset=utf-8,algorithm=md5-sess. The client answers with
a hash of the challenge and the password. rspauth=... of the server proves that it knows the password too. The
mechanism fixes MD5: use it over TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

from kbroker.security.mechanism import AuthenticationFailed

__all__ = ["DigestMd5Client"]

_DIRECTIVE: Final = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?:,|\Z)', re.DOTALL)
_COUNT: Final = "00000001"  # each nonce is used once
_QOP: Final = "auth"


class DigestMd5Client:
    """`service` and `host` name the server: it must expect the same names."""

    def __init__(
        self,
        user: str,
        password: str,
        *,
        service: str,
        host: str,
        make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._user = user
        self._password = password
        self._uri = f"{service}/{host}"
        self._nonce = make_nonce()
        self._proof: str | None = None  # that the server must send

    def first_token(self) -> bytes:
        return b""

    def step(self, challenge: bytes) -> bytes | None:
        directives = _parse(challenge)
        if self._proof is None:
            return self._answer(directives)
        if not hmac.compare_digest(directives.get("rspauth", "").encode(), self._proof.encode()):
            raise AuthenticationFailed("the server could not prove that it knows the password")
        return None

    def _answer(self, challenge: dict[str, str]) -> bytes:
        nonce = challenge.get("nonce")
        if nonce is None or challenge.get("algorithm") != "md5-sess":
            raise AuthenticationFailed("the server sent an invalid DIGEST-MD5 challenge")
        if _QOP not in challenge.get("qop", _QOP).replace(" ", "").split(","):
            raise AuthenticationFailed("the server wants to protect each message, which kbroker cannot")
        realm = challenge.get("realm", "")
        is_utf8 = challenge.get("charset", "").lower() == "utf-8"
        secret = _md5(b":".join(_hashed_text(text, is_utf8) for text in (self._user, realm, self._password)))
        session = _md5(secret + f":{nonce}:{self._nonce}".encode()).hex()

        def proof(method: str) -> str:
            target = _md5(f"{method}:{self._uri}".encode()).hex()
            return _md5(f"{session}:{nonce}:{_COUNT}:{self._nonce}:{_QOP}:{target}".encode()).hex()

        self._proof = proof("")
        parts = [
            *(["charset=utf-8"] if is_utf8 else []),
            f"username={_quoted(self._user)}",
            f"realm={_quoted(realm)}",
            f"nonce={_quoted(nonce)}",
            f"nc={_COUNT}",
            f"cnonce={_quoted(self._nonce)}",
            f"digest-uri={_quoted(self._uri)}",
            f"response={proof('AUTHENTICATE')}",
            f"qop={_QOP}",
        ]
        return ",".join(parts).encode("utf-8" if is_utf8 else "iso-8859-1", "replace")


def _parse(challenge: bytes) -> dict[str, str]:
    text = challenge.decode("utf-8", "replace")
    directives: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _DIRECTIVE.match(text, position)
        if found is None:
            raise AuthenticationFailed("the server sent an invalid DIGEST-MD5 message")
        value = found[3] if found[2] is None else re.sub(r"\\(.)", r"\1", found[2], flags=re.DOTALL)
        directives.setdefault(found[1].lower(), value)  # of several realms, the first one
        position = found.end()
    return directives


def _hashed_text(text: str, is_utf8: bool) -> bytes:
    """Returns the bytes that are hashed: ISO 8859-1 if possible, also with charset=utf-8, as RFC 2831 says."""
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        if not is_utf8:
            raise AuthenticationFailed("user and password must be ISO 8859-1: the server has no UTF-8") from None
        return text.encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
