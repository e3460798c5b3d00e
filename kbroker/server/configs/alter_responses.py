"""Response of AlterConfigs and IncrementalAlterConfigs: their schemas differ only in the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.errors import Refusal
from kbroker.server.configs.config_changes import ResourceOutcome
from kbroker.server.requests.error_fields import error_fields

__all__ = ["alter_response", "refuse_alterations"]


def alter_response(messages: Any, outcomes: Iterable[ResourceOutcome]) -> Any:
    """Returns one result for each resource. `messages` is the module of the API's schema."""
    return messages.RESPONSE(
        responses=[
            messages.AlterConfigsResourceResponse(
                **error_fields(refusal),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, refusal in outcomes
        ]
    )


def refuse_alterations(messages: Any, resources: Iterable[Any], refusal: Refusal) -> Any:
    """Returns the same error for all resources."""
    return alter_response(messages, [(resource, refusal) for resource in resources])
