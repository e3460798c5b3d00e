"""DescribeConfigs (32), v0-4: returns configs of topics, brokers, broker loggers, groups and client metrics (KIP-133).

A null or empty list of names means all configs; unknown names are ignored. v1: the source of each value, and optionally
its synonyms (KIP-226). v3: types, and optionally documentation (KIP-569). Values of sensitive configs are never sent.

A resource that a request names several times gets one result, with the configs of all its lists of names. (Apache Kafka
repeats it; its own admin client cannot read such a response.)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.config.key import ConfigEntry
from kbroker.config.resources import ConfigResourceType
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_configs as messages
from kbroker.server.configs.config_resources import authorization_refusal, describe, resource_type
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


# Any name of a group or subscription has configs, and a broker id has many spellings ("1", "01"). So unlike results of
# topics, their results are not bounded by what exists.
MAX_CONFIGS: Final = 100_000

_Key = tuple[int, str]
_Distinct = dict[_Key, set[str]]
"""Names of configs by type and name of their resource, in the order of the request. An empty set means all configs."""

_TOO_MANY: Final = f"More than {MAX_CONFIGS} configs in one request. Describe fewer resources at once."


def handle(context: Context, request: Request) -> Any:
    distinct: _Distinct = {}

    def describe_all(_: list[None]) -> Any:
        results = _Results(context, request)
        return respond_in_slices(context.clock, results.of, distinct.items(), _response)

    return respond_in_slices(context.clock, partial(_merge, distinct), request.body.resources, describe_all)


def refuse(request: Request, code: int, message: str | None) -> Any:
    distinct: _Distinct = {}
    for resource in request.body.resources:
        _merge(distinct, resource)
    return _response([_refused(*key, Refusal(code, message)) for key in distinct])


def _merge(distinct: _Distinct, resource: Any) -> None:
    key = (resource.resource_type, resource.resource_name)
    names = resource.configuration_keys
    if key not in distinct:
        distinct[key] = set(names or ())
    elif not names:
        distinct[key] = set()
    elif distinct[key]:
        distinct[key].update(names)


class _Results:
    """Makes the results of one request, and counts the configs that it may still send."""

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._configs_left = MAX_CONFIGS

    def of(self, resource: tuple[_Key, set[str]]) -> Any:
        (type_number, name), names = resource
        try:
            configs = self._configs(resource_type(type_number), name, names)
        except Refusal as refusal:
            return _refused(type_number, name, refusal)
        return messages.DescribeConfigsResult(resource_type=type_number, resource_name=name, configs=configs)

    def _configs(self, kind: ConfigResourceType, name: str, names: set[str]) -> list[Any]:
        context, request = self._context, self._request
        refusal = authorization_refusal(context, request, AclOperation.DESCRIBE_CONFIGS, kind, name)
        if refusal is not None:
            raise refusal
        if self._configs_left <= 0 and kind is not ConfigResourceType.TOPIC:
            raise Refusal(ErrorCode.INVALID_REQUEST, _TOO_MANY)
        body = request.body
        configs = [
            _config(entry, with_synonyms=body.include_synonyms, with_documentation=body.include_documentation)
            for entry in describe(context, kind, name)
            if not names or entry.name in names
        ]
        if kind is not ConfigResourceType.TOPIC:
            self._configs_left -= len(configs)
        return configs


def _config(entry: ConfigEntry, *, with_synonyms: bool, with_documentation: bool) -> Any:
    return messages.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_default=entry.is_default,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            messages.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if with_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if with_documentation else None,
    )


def _refused(type_number: int, name: str, refusal: Refusal) -> Any:
    return messages.DescribeConfigsResult(**error_fields(refusal), resource_type=type_number, resource_name=name)


def _response(results: list[Any]) -> Any:
    return messages.RESPONSE(results=results)
