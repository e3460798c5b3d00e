"""AlterConfigs (33), v0-2: replaces all configs of a resource; configs that the request omits are deleted (KIP-133).

Deprecated in favour of IncrementalAlterConfigs. Does not support broker loggers. `validate_only` changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.messages import alter_configs as messages
from kbroker.server.configs.alter_responses import alter_response, refuse_alterations
from kbroker.server.configs.config_changes import alter_resources, replacing_ops

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    outcomes = await alter_resources(context, request, replacing_ops, is_incremental=False)
    return await alter_response(context.clock, messages, outcomes)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return refuse_alterations(messages, request.body.resources, Refusal(code, message))
