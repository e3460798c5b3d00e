"""IncrementalAlterConfigs (44), v0-1: sets or deletes single configs, appends to lists, subtracts from them (KIP-339).

Other configs keep their values. Each resource is changed completely or not at all, independently of the others.
`validate_only` changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.messages import incremental_alter_configs as messages
from kbroker.server.configs.alter_responses import alter_response, refuse_alterations
from kbroker.server.configs.config_changes import alter_resources, incremental_ops

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


async def handle(context: Context, request: Request) -> Any:
    outcomes = await alter_resources(context, request, incremental_ops, is_incremental=True)
    return await alter_response(context.clock, messages, outcomes)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return refuse_alterations(messages, request.body.resources, Refusal(code, message))
