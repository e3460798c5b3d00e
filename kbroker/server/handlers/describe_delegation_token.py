"""DescribeDelegationToken (41), v0 to v3: tokens with their HMACs, those of some owners and renewers or all.

A client sees the tokens that it owns or may renew; others with DESCRIBE on the token, or with DESCRIBE_TOKENS on the
owner. All other tokens are left out. An empty list of owners names no token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import describe_delegation_token as messages
from kbroker.security.delegation_token import DelegationToken, split_principal
from kbroker.server.access.permissions import allows_token, allows_user
from kbroker.server.access.token_requests import check_may_use_tokens, tokens_of
from kbroker.time_slice import TimeSlice

if TYPE_CHECKING:
    from kbroker.controller.token_store import KnownToken
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    check_may_use_tokens(context, request)
    known = list(tokens_of(context).known())
    owners = request.body.owners
    wanted = None if owners is None else [f"{owner.principal_type}:{owner.principal_name}" for owner in owners]
    time_slice = TimeSlice(context.clock)
    described = []
    for one in known:
        await time_slice.checkpoint_if_over()
        is_wanted = wanted is None or any(one.token.belongs_to(principal) for principal in wanted)
        if is_wanted and _may_see(context, request, one.token):
            described.append(_described(one))
    return messages.RESPONSE(tokens=described)


def _may_see(context: Context, request: Request, token: DelegationToken) -> bool:
    return (
        token.belongs_to(request.principal)
        or allows_token(context, request, AclOperation.DESCRIBE, token.token_id)
        or allows_user(context, request, AclOperation.DESCRIBE_TOKENS, token.owner)
    )


def _described(known: KnownToken) -> Any:
    token = known.token
    owner_type, owner_name = split_principal(token.owner)
    requester_type, requester_name = split_principal(token.requester)
    renewers = map(split_principal, token.renewers)
    return messages.DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=known.hmac,
        renewers=[
            messages.DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in renewers
        ],
    )
