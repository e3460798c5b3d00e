"""AlterConfigs (33), v0-2: the configs of a resource, all at once; what is not named is deleted. Or just a check.

Clients of today use IncrementalAlterConfigs. Loggers cannot be changed this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.messages import alter_configs as messages
from kbroker.server.config_changes import alter_resources, replacement

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    outcomes = await alter_resources(context, request, replacement, is_incremental=False)
    return messages.RESPONSE(responses=[_response(resource, refusal) for resource, refusal in outcomes])


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    return messages.RESPONSE(responses=[_response(each, refusal) for each in request.body.resources])


def _response(resource: Any, refusal: Refusal | None) -> Any:
    return messages.AlterConfigsResourceResponse(
        error_code=0 if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
