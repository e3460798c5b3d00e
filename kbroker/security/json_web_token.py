"""JSON Web Tokens (RFC 7519) of OAUTHBEARER: validates signature, issuer, audience and times, as Kafka's KIP-768 does.

Two validators: `validate_signed` needs a key set, `validate_unsigned` accepts tokens that anybody can write. The
second is for tests, and only used if the config names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbroker.security.json_web_keys import JsonWebKeys, decode_base64url

__all__ = ["BearerToken", "InvalidToken", "TokenRules", "ValidateToken", "validate_signed", "validate_unsigned"]

MAX_TOKEN_SIZE: Final = 64 * 1024
_NUMBERS: Final = (int, float)
_MAX_SECONDS: Final = 2**40


class InvalidToken(Exception):
    """The token is not accepted. The message is for the log of the broker."""

    def __init__(self, reason: str, *, unknown_key_id: str | None = None) -> None:
        super().__init__(reason)
        self.unknown_key_id = unknown_key_id
        """The key id of the token, if no key has it: the issuer may have a new key."""


@dataclass(frozen=True, slots=True)
class BearerToken:
    user: str
    expires_ms: int


ValidateToken = Callable[[str], BearerToken]
"""Returns the accepted token. Raises InvalidToken if it is not accepted."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    """Accepted audiences; empty: any, also none."""
    clock_skew_seconds: float = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scopes: tuple[str, ...] = ()


def validate_signed(text: str, rules: TokenRules, keys: JsonWebKeys, *, now_ms: int) -> BearerToken:
    """Returns the token. Raises InvalidToken if its signature or a claim is invalid."""
    header, claims, signed, signature = _parts(text)
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise InvalidToken("alg or kid of the header is not a text")
    if "crit" in header:
        raise InvalidToken("the header has critical extensions")
    key = keys.find(algorithm, key_id)
    if key is None:
        raise InvalidToken(f"no key for alg {algorithm[:20]!r} and its kid", unknown_key_id=key_id)
    if not key.verify(algorithm, signed, signature):
        raise InvalidToken("the signature does not fit")
    if not isinstance(claims.get("iat"), _NUMBERS) or isinstance(claims["iat"], bool):
        raise InvalidToken("iat is missing, or not a number")
    return _checked(claims, rules, now_ms)


def validate_unsigned(text: str, rules: TokenRules, *, now_ms: int) -> BearerToken:
    """Returns an unsigned token (alg none). Raises InvalidToken if it is signed, or its claims are invalid."""
    header, claims, _, signature = _parts(text)
    if header.get("alg") != "none" or signature:
        raise InvalidToken("only unsigned tokens (alg none) are accepted")
    return _checked(claims, rules, now_ms)


def _parts(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any], bytes, bytes]:
    parts = text.split(".")
    if len(parts) != 3 or len(text) > MAX_TOKEN_SIZE:
        raise InvalidToken("not a token of three parts")
    try:
        header, claims = (json.loads(decode_base64url(part)) for part in parts[:2])
        signature = decode_base64url(parts[2])
    except (ValueError, RecursionError):
        raise InvalidToken("header or claims are not JSON in base64url") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise InvalidToken("header or claims are not JSON objects")
    return header, claims, f"{parts[0]}.{parts[1]}".encode(), signature


def _checked(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> BearerToken:
    now = now_ms / 1000
    skew = rules.clock_skew_seconds
    expires = _seconds(claims, "exp")
    if expires is None:
        raise InvalidToken("exp is missing")
    if expires + skew <= now:
        raise InvalidToken("the token has expired")
    for name in ("nbf", "iat"):
        since = _seconds(claims, name)
        if since is not None and since - skew > now:
            raise InvalidToken(f"{name} is in the future")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidToken("another issuer than expected")
    if rules.audiences and not set(_texts(claims, "aud")) & set(rules.audiences):
        raise InvalidToken("another audience than expected")
    if missing := set(rules.required_scopes) - set(_scopes(claims, rules.scope_claim)):
        raise InvalidToken(f"missing scopes: {', '.join(sorted(missing))}")
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user.strip():
        raise InvalidToken(f"{rules.subject_claim} is missing, or not a text")
    return BearerToken(user, int(expires * 1000))


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if not isinstance(value, _NUMBERS) or isinstance(value, bool) or not 0 <= value <= _MAX_SECONDS:
        raise InvalidToken(f"{name} is not a number of seconds")
    return float(value)


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    value = claims.get(name, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise InvalidToken(f"{name} is not a text or a list of texts")
    return values


def _scopes(claims: Mapping[str, Any], name: str) -> list[str]:
    return [scope for text in _texts(claims, name) for scope in text.split()]
