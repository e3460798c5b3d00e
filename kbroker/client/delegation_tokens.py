"""Delegation tokens (KIP-48): create, renew, expire and describe them. Any broker serves these requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import Api, api
from kbroker.security.delegation_token import DelegationToken, split_principal

__all__ = ["IssuedToken", "create_token", "describe_tokens", "expire_token", "renew_token"]

CREATE_DELEGATION_TOKEN: Final = api(38)
RENEW_DELEGATION_TOKEN: Final = api(39)
EXPIRE_DELEGATION_TOKEN: Final = api(40)
DESCRIBE_DELEGATION_TOKEN: Final = api(41)

_WITH_OWNER: Final = 3  # version

_REASONS: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the brokers have no delegation.token.secret.key",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: ("log in with SASL or a client certificate, and not with a token"),
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may do this",
}


class IssuedToken(NamedTuple):
    """A token with its HMAC, which is the secret of its login."""

    token: DelegationToken
    hmac: bytes

    def __repr__(self) -> str:
        return f"IssuedToken({self.token!r}, [hidden])"


async def create_token(
    cluster: Cluster, *, owner: str | None = None, renewers: Sequence[str] = (), lifetime_ms: int = -1
) -> IssuedToken:
    """Creates a token. `owner`: None for the user of this client. Raises BrokerRefusal if it is refused."""
    from kbroker.protocol.messages.create_delegation_token import CreatableRenewers

    owner_type, owner_name = (None, None) if owner is None else split_principal(owner)
    response = await _ask(
        cluster,
        CREATE_DELEGATION_TOKEN,
        "delegation token",
        at_least=0 if owner is None else _WITH_OWNER,
        owner_principal_type=owner_type,
        owner_principal_name=owner_name,
        renewers=[
            CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in map(split_principal, renewers)
        ],
        max_lifetime_ms=lifetime_ms,
    )
    created_for = f"{response.principal_type}:{response.principal_name}"
    token = DelegationToken(
        response.token_id,
        created_for,
        _requester(response) or created_for,
        tuple(renewers),
        issue_ms=response.issue_timestamp_ms,
        expiry_ms=response.expiry_timestamp_ms,
        max_ms=response.max_timestamp_ms,
    )
    return IssuedToken(token, bytes(response.hmac))


async def describe_tokens(cluster: Cluster, owners: Iterable[str] | None = None) -> list[IssuedToken]:
    """Returns the tokens that this client may see: those of some owners and renewers, or all.

    Raises BrokerRefusal if the request is refused.
    """
    from kbroker.protocol.messages.describe_delegation_token import DescribeDelegationTokenOwner

    wanted = None
    if owners is not None:
        wanted = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(split_principal, owners)
        ]
    response = await _ask(cluster, DESCRIBE_DELEGATION_TOKEN, "delegation tokens", owners=wanted)
    return sorted(map(_issued, response.tokens), key=lambda issued: (issued.token.owner, issued.token.issue_ms))


async def renew_token(cluster: Cluster, issued: IssuedToken, period_ms: int = -1) -> int:
    """Returns the new expiry in ms since the epoch. A negative period means the broker's.

    Raises BrokerRefusal if the request is refused.
    """
    subject = f"delegation token {issued.token.token_id}"
    response = await _ask(cluster, RENEW_DELEGATION_TOKEN, subject, hmac=issued.hmac, renew_period_ms=period_ms)
    return int(response.expiry_timestamp_ms)


async def expire_token(cluster: Cluster, issued: IssuedToken, period_ms: int = -1) -> int:
    """Returns the new expiry in ms since the epoch. A negative period deletes the token.

    Raises BrokerRefusal if the request is refused.
    """
    subject = f"delegation token {issued.token.token_id}"
    response = await _ask(cluster, EXPIRE_DELEGATION_TOKEN, subject, hmac=issued.hmac, expiry_time_period_ms=period_ms)
    return int(response.expiry_timestamp_ms)


async def _ask(cluster: Cluster, asked: Api, subject: str, *, at_least: int = 0, **members: Any) -> Any:
    connection = await cluster.any_connection()
    response = await connection.send(asked, at_least=at_least, **members)
    if response.error_code != ErrorCode.NONE:
        raise BrokerRefusal(response.error_code, subject, _REASONS.get(response.error_code))
    return response


def _issued(described: Any) -> IssuedToken:
    owner = f"{described.principal_type}:{described.principal_name}"
    token = DelegationToken(
        described.token_id,
        owner,
        _requester(described) or owner,
        tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in described.renewers),
        issue_ms=described.issue_timestamp,
        expiry_ms=described.expiry_timestamp,
        max_ms=described.max_timestamp,
    )
    return IssuedToken(token, bytes(described.hmac))


def _requester(response: Any) -> str | None:
    """Returns None before v3, which has the owner only."""
    name = response.token_requester_principal_name
    return f"{response.token_requester_principal_type}:{name}" if name else None
