"""Response of AlterConfigs and IncrementalAlterConfigs: their schemas differ only in the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import Refusal
from kbroker.server.configs.config_changes import ResourceOutcome
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import map_in_slices

__all__ = ["alter_response", "refuse_alterations"]


async def alter_response(clock: Clock, messages: Any, outcomes: Iterable[ResourceOutcome]) -> Any:
    """Returns one result for each resource. `messages` is the module of the API's schema."""
    responses = await map_in_slices(clock, lambda outcome: _result(messages, *outcome), outcomes)
    return messages.RESPONSE(responses=responses)


def refuse_alterations(messages: Any, resources: Iterable[Any], refusal: Refusal) -> Any:
    """Returns the same error for all resources."""
    return messages.RESPONSE(responses=[_result(messages, resource, refusal) for resource in resources])


def _result(messages: Any, resource: Any, refusal: Refusal | None) -> Any:
    return messages.AlterConfigsResourceResponse(
        **error_fields(refusal), resource_type=resource.resource_type, resource_name=resource.resource_name
    )
