"""DescribeConfigs (32), v0-4: every config of topics, brokers, broker loggers, groups and client metrics.

All names if the list of wanted ones is null or empty; names that are not known are passed over. v1: the source of each
value, and on request all values on the way to it. v3: types, and on request documentation. A secret is never told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.config import ConfigEntry
from kbroker.errors import Refusal
from kbroker.protocol.messages import describe_configs as messages
from kbroker.server.authorization import Operation
from kbroker.server.config_resources import authorization_refusal, describe, resource_type

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(results=[_result(context, request, each) for each in request.body.resources])


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    return messages.RESPONSE(results=[_refused(each, refusal) for each in request.body.resources])


def _result(context: Context, request: Request, resource: Any) -> Any:
    try:
        kind = resource_type(resource.resource_type)
        refusal = authorization_refusal(context, request, Operation.DESCRIBE_CONFIGS, kind, resource.resource_name)
        if refusal is not None:
            return _refused(resource, refusal)
        entries = describe(context, kind, resource.resource_name)
    except Refusal as refusal:
        return _refused(resource, refusal)
    wanted = frozenset(resource.configuration_keys or ())
    body = request.body
    return messages.DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _config(entry, with_synonyms=body.include_synonyms, with_documentation=body.include_documentation)
            for entry in entries
            if not wanted or entry.name in wanted
        ],
    )


def _config(entry: ConfigEntry, *, with_synonyms: bool, with_documentation: bool) -> Any:
    return messages.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_default=entry.is_default,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            messages.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in entry.synonyms
        ]
        if with_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if with_documentation else None,
    )


def _refused(resource: Any, refusal: Refusal) -> Any:
    return messages.DescribeConfigsResult(
        error_code=refusal.code,
        error_message=refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
