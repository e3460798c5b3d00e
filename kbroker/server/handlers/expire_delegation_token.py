"""ExpireDelegationToken (40), v0 to v2: lets a token expire sooner, or deletes it if the period is negative.

Only the owner of the token and its renewers may do so; the request names the token by its HMAC. Clients that are logged
in with the token stay logged in until their session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import expire_delegation_token as messages
from kbroker.server.access.token_requests import NO_TIME, check_may_use_tokens, tokens_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    check_may_use_tokens(context, request)
    hmac, period_ms = bytes(request.body.hmac), request.body.expiry_time_period_ms
    expiry_ms = await tokens_of(context).expire(hmac, request.principal, period_ms)
    return messages.RESPONSE(expiry_timestamp_ms=expiry_ms)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, expiry_timestamp_ms=NO_TIME)
