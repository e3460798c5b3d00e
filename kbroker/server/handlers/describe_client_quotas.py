"""DescribeClientQuotas (48), v0-1: the quotas of all entities that a filter matches; an empty filter matches all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_client_quotas as messages
from kbroker.server.authorization import Operation
from kbroker.server.client_quotas import Component, find_quotas
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.DESCRIBE_CONFIGS):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    body = request.body
    components = [Component(each.entity_type, each.match_type, each.match) for each in body.components]
    quotas = find_quotas(context.controller.image.entity_configs, components, is_strict=body.strict)
    return messages.RESPONSE(
        entries=[
            messages.EntryData(
                entity=[messages.EntityData(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()],
                values=[messages.ValueData(key=name, value=value) for name, value in quota.values.items()],
            )
            for quota in quotas
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, error_message=message, entries=None)
