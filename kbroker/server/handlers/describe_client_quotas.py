"""DescribeClientQuotas (48), v0-1: returns the quotas of the entities that match a filter (KIP-546).

An empty filter matches all entities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_client_quotas as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.quotas.client_quotas import FilterComponent, check_filter, matching_quota
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_MAX_COMPONENTS: Final = 4  # there are three types of entities: a fourth component makes the filter invalid


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE_CONFIGS):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    body = request.body
    components = [
        FilterComponent(component.entity_type, component.match_type, component.match)
        for component in body.components[:_MAX_COMPONENTS]
    ]
    check_filter(components)
    is_strict = body.strict

    def describe(entity: tuple[str, Mapping[str, str]]) -> Any:
        quota = matching_quota(*entity, components, is_strict=is_strict)
        if quota is None:
            return None
        return messages.EntryData(
            entity=[messages.EntityData(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()],
            values=[messages.ValueData(key=name, value=value) for name, value in quota.values.items()],
        )

    def respond(entries: list[Any]) -> Any:
        return messages.RESPONSE(entries=[entry for entry in entries if entry is not None])

    return respond_in_slices(context.clock, describe, context.controller.image.entity_configs.items(), respond)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, error_message=message, entries=None)
