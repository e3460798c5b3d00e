"""DescribeAcls (29), v0-3: responds SECURITY_DISABLED, because kbroker has no authorizer (KIP-140)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    raise Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
