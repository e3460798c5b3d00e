"""IncrementalAlterConfigs (44), v0-1: single configs set, deleted, and lists extended or shortened; or just a check.

What is not named stays as it is. A resource is changed as a whole or not at all, whatever becomes of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.messages import incremental_alter_configs as messages
from kbroker.server.config_changes import alter_resources, steps

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    outcomes = await alter_resources(context, request, steps, is_incremental=True)
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
