"""SaslHandshake (17), v0-1: refused with ILLEGAL_SASL_STATE, because no login is expected here.

The handshake of a login is answered by `authentication/`. A request comes here on a listener without SASL, and from a
client that is logged in and cannot re-authenticate: its session has no end, or began less than a second ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import sasl_handshake as messages

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
