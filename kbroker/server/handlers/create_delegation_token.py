"""CreateDelegationToken (38), v0 to v3: creates a token with which a program can log in as its owner (KIP-48, KIP-373).

Any client that has proved its identity may create tokens for itself; for another owner it needs CREATE_TOKENS on the
user. Owner and renewers must be users: a login with the token is always one of a user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_delegation_token as messages
from kbroker.security.delegation_token import USER_TYPE, split_principal
from kbroker.server.access.permissions import allows_user
from kbroker.server.access.token_requests import NO_TIME, check_may_use_tokens, tokens_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    check_may_use_tokens(context, request)
    owner = _owner(request)
    if owner != request.principal and not allows_user(context, request, AclOperation.CREATE_TOKENS, owner):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    body = request.body
    renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in body.renewers]
    if any(split_principal(principal)[0] != USER_TYPE for principal in (owner, *renewers)):
        raise Refusal(ErrorCode.INVALID_PRINCIPAL_TYPE)
    known = await tokens_of(context).create(
        owner=owner, requester=request.principal, renewers=renewers, lifetime_ms=body.max_lifetime_ms
    )
    token = known.token
    return messages.RESPONSE(
        issue_timestamp_ms=token.issue_ms,
        expiry_timestamp_ms=token.expiry_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=known.hmac,
        **_principals(request),
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        error_code=code,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
        **_principals(request),
    )


def _owner(request: Request) -> str:
    return ":".join(_owner_parts(request))


def _owner_parts(request: Request) -> tuple[str, str]:
    body = request.body
    if not body.owner_principal_name:
        return split_principal(request.principal)
    return body.owner_principal_type or "", body.owner_principal_name


def _principals(request: Request) -> dict[str, str]:
    owner_type, owner_name = _owner_parts(request)
    requester_type, requester_name = split_principal(request.principal)
    return {
        "principal_type": owner_type,
        "principal_name": owner_name,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester_name,
    }
