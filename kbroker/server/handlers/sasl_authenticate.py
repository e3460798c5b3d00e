"""SaslAuthenticate (36), v0-2: refused with ILLEGAL_SASL_STATE, because no login is expected here.

The tokens of a login are handled by `authentication/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import sasl_authenticate as messages

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
