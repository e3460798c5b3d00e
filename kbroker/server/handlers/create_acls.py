"""CreateAcls (30), v0-3: refuses each ACL with SECURITY_DISABLED, because kbroker has no authorizer (KIP-140)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_acls as messages

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    raise Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        results=[messages.AclCreationResult(error_code=code, error_message=message) for _ in request.body.creations]
    )
