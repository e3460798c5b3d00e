"""DescribeAcls (29), v0-3: without an authorizer there are no ACLs, and that is said: tools know what to do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    raise Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
