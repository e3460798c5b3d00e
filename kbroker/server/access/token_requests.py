"""Functions of the delegation token handlers: which clients may use these APIs, and principals of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.requests.client_session import ANONYMOUS

if TYPE_CHECKING:
    from kbroker.controller.token_store import TokenStore
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["NO_TIME", "check_may_use_tokens", "tokens_of"]

NO_TIME: Final = -1
"""Kafka's time in an error response."""


def check_may_use_tokens(context: Context, request: Request) -> None:
    """Raises Refusal unless the client has proved its identity, and without a token.

    A token that makes or renews tokens would never end.
    """
    protocol = context.config.listener_config(request.listener_name).security_protocol
    is_unknown = protocol == "PLAINTEXT" or (protocol == "SSL" and request.principal == ANONYMOUS)
    if is_unknown or request.is_with_token:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def tokens_of(context: Context) -> TokenStore:
    """Raises Refusal if the broker has no secret key for tokens."""
    if context.tokens is None:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return context.tokens
