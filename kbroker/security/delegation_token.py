"""Delegation tokens (KIP-48): values, the HMAC of a token, and who may renew or expire it. Pure.

A token lets a program log in as the token's owner without the owner's password: with SCRAM, the token id as user name
and the HMAC of the id as password. Principals are texts, for example User:alice.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["USER_TYPE", "DelegationToken", "TokenRules", "split_principal", "token_password"]

USER_TYPE: Final = "User"


class DelegationToken(NamedTuple):
    """A token as it is stored: times are in ms since the epoch. The HMAC is not part of it."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    @property
    def user(self) -> str:
        """Returns the name with which a client is logged in that uses the token."""
        return split_principal(self.owner)[1]

    def is_expired(self, now_ms: int) -> bool:
        return self.max_ms < now_ms or self.expiry_ms < now_ms

    def belongs_to(self, principal: str) -> bool:
        """Whether the principal is the owner or a renewer."""
        return principal == self.owner or principal in self.renewers


class TokenRules(NamedTuple):
    """`delegation.token.*` of a broker. Every broker of a cluster needs the same secret key."""

    secret_key: str
    max_lifetime_ms: int
    renewal_ms: int

    def __repr__(self) -> str:
        return f"TokenRules([hidden], {self.max_lifetime_ms}, {self.renewal_ms})"

    def hmac(self, token_id: str) -> bytes:
        return hmac.digest(self.secret_key.encode(), token_id.encode(), "sha512")

    def issue(
        self, token_id: str, *, owner: str, requester: str, renewers: Sequence[str], lifetime_ms: int, now_ms: int
    ) -> DelegationToken:
        """Returns a new token. A lifetime that is not positive means the maximum."""
        lifetime = self.max_lifetime_ms if lifetime_ms <= 0 else min(lifetime_ms, self.max_lifetime_ms)
        max_ms = now_ms + lifetime
        expiry_ms = min(max_ms, now_ms + self.renewal_ms)
        return DelegationToken(token_id, owner, requester, tuple(renewers), now_ms, expiry_ms, max_ms)

    def renew(self, token: DelegationToken, principal: str, *, period_ms: int, now_ms: int) -> DelegationToken:
        """Returns the token with a later expiry; a negative period means the default.

        Raises Refusal if the token has expired, or the principal may not renew it.
        """
        _check_owner(token, principal)
        _check_not_expired(token, now_ms)
        period = self.renewal_ms if period_ms < 0 else period_ms
        return token._replace(expiry_ms=min(token.max_ms, now_ms + period))

    def expire(self, token: DelegationToken, principal: str, *, period_ms: int, now_ms: int) -> DelegationToken | None:
        """Returns the token with another expiry, or None for a negative period: it ends at once.

        Raises Refusal if the token has expired, or the principal may not expire it.
        """
        _check_owner(token, principal)
        if period_ms < 0:
            return None
        _check_not_expired(token, now_ms)
        return token._replace(expiry_ms=min(token.max_ms, now_ms + period_ms))


def _check_owner(token: DelegationToken, principal: str) -> None:
    if not token.belongs_to(principal):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _check_not_expired(token: DelegationToken, now_ms: int) -> None:
    if token.is_expired(now_ms):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED)


def token_password(hmac_bytes: bytes) -> str:
    """Returns the password of a token, which clients get as bytes and send as a proof of this text."""
    return base64.b64encode(hmac_bytes).decode()


def split_principal(principal: str) -> tuple[str, str]:
    """Returns type and name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name
