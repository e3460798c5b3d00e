"""Changes of configs as clients ask for them: all of a resource replaced, or single ones set, deleted, extended.

A change is made from what holds at the moment of the write, so that two clients do not undo each other. Whoever acts by
a config follows the controller's image, or the broker's config, and does so before the client has its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.config import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey, ConfigType, validate_dynamic_configs
from kbroker.controller.controller import ConfigsUpdate
from kbroker.controller.znodes import entity_path
from kbroker.errors import Refusal
from kbroker.group_config import GROUP_CONFIGS, validate_group_configs
from kbroker.names import topic_name_problem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.authorization import Operation
from kbroker.server.broker_loggers import check_change, set_level, unset_level
from kbroker.server.client_metrics import check_subscription
from kbroker.server.config_resources import ConfigResourceType, authorization_refusal, resource_type

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["Step", "alter_resources", "replacement", "steps"]


class StepKind(IntEnum):
    """The numbers are those of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Step(NamedTuple):
    kind: int
    name: str
    text: str | None


Outcome = tuple[Any, Refusal | None]
_Plan = Callable[[Any], Sequence[Step]]

# Brokers and groups have their tables; nothing of a subscription to client metrics can be extended.
_TABLES: Final[Mapping[ConfigResourceType, Mapping[str, ConfigKey[Any]]]] = {
    ConfigResourceType.TOPIC: TOPIC_CONFIGS,
    ConfigResourceType.BROKER: BROKER_CONFIGS,
    ConfigResourceType.GROUP: GROUP_CONFIGS,
}


def steps(resource: Any) -> list[Step]:
    """What a resource of IncrementalAlterConfigs asks for."""
    return [Step(each.config_operation, each.name, each.value) for each in resource.configs]


def replacement(resource: Any) -> list[Step]:
    """What a resource of AlterConfigs asks for: these configs, and no others."""
    return [Step(StepKind.SET, each.name, each.value) for each in resource.configs]


async def alter_resources(context: Context, request: Request, plan: _Plan, *, is_incremental: bool) -> list[Outcome]:
    """An outcome for each resource of the request, in order; one that is refused does not hold up the others."""
    resources = request.body.resources
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    outcomes: list[Outcome] = []
    for each in resources:
        try:
            if counts[each.resource_type, each.resource_name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await _alter(context, request, each, plan(each), is_incremental)
        except Refusal as refusal:
            outcomes.append((each, refusal))
        else:
            outcomes.append((each, None))
    return outcomes


async def _alter(
    context: Context, request: Request, resource: Any, wished: Sequence[Step], is_incremental: bool
) -> None:
    _check_steps(wished)
    kind, name = resource_type(resource.resource_type), resource.resource_name
    if kind is ConfigResourceType.BROKER_LOGGER and not is_incremental:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind.value}")
    refusal = authorization_refusal(context, request, Operation.ALTER_CONFIGS, kind, name)
    if refusal is not None:
        raise refusal
    is_try = request.body.validate_only
    if kind is ConfigResourceType.BROKER_LOGGER:
        _check_node_id(context, name)
        _change_loggers(wished, is_try=is_try)
        return
    update = _update(_TABLES.get(kind, {}), wished, is_incremental=is_incremental)
    await _WRITERS[kind](context, name, update, is_try)


def _check_steps(wished: Sequence[Step]) -> None:
    if len({step.name for step in wished}) < len(wished):
        raise Refusal(ErrorCode.INVALID_REQUEST, "A config is named more than once.")
    if without := [step.name for step in wished if step.text is None and step.kind != StepKind.DELETE]:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(without)}")
    if unknown := [step.kind for step in wished if step.kind not in list(StepKind)]:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operation {unknown[0]}")


def _update(table: Mapping[str, ConfigKey[Any]], wished: Sequence[Step], *, is_incremental: bool) -> ConfigsUpdate:
    def update(current: Mapping[str, str]) -> dict[str, str]:
        configs = dict(current) if is_incremental else {}
        for kind, name, text in wished:
            if kind == StepKind.DELETE:
                configs.pop(name, None)
            else:
                assert text is not None
                is_plain = kind == StepKind.SET
                configs[name] = text if is_plain else _extended(table.get(name), kind, name, text, configs.get(name))
        return configs

    return update


def _extended(key: ConfigKey[Any] | None, kind: int, name: str, text: str, current: str | None) -> str:
    """A list with items added at its end, or taken out; one that was not set starts from the default."""
    if key is None or key.type is not ConfigType.LIST:
        verb = StepKind(kind).name
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
    items = [item for item in (key.default_text or "" if current is None else current).split(",") if item]
    for item in text.split(","):
        if kind == StepKind.APPEND and item not in items:
            items.append(item)
        elif kind == StepKind.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


def _check_node_id(context: Context, name: str) -> None:
    try:
        node_id = int(name)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if node_id != context.broker_id:
        message = f"Unexpected broker id, expected {context.broker_id}, but received {name}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def _change_loggers(wished: Sequence[Step], *, is_try: bool) -> None:
    for kind, name, text in wished:
        if kind not in (StepKind.SET, StepKind.DELETE):
            message = f"{StepKind(kind).name} is not possible for the level of a logger"
            raise Refusal(ErrorCode.INVALID_REQUEST, message)
        check_change(name, text if kind == StepKind.SET else None)
    for kind, name, text in () if is_try else wished:
        if kind == StepKind.SET and text is not None:
            set_level(name, text)
        else:
            unset_level(name)


async def _write_topic(context: Context, name: str, update: ConfigsUpdate, is_try: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = topic_name_problem(name)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    await context.controller.update_topic_configs(name, update, validate_only=is_try)


async def _write_broker(context: Context, name: str, update: ConfigsUpdate, is_try: bool) -> None:
    if name:
        _check_node_id(context, name)

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        # What was stored before may be of another release: it is in nobody's way.
        changed = {each: text for each, text in configs.items() if current.get(each) != text}
        problem = validate_dynamic_configs(changed, is_per_broker=bool(name))
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_REQUEST, problem)
        return configs

    entity = entity_path("brokers", str(context.broker_id) if name else None)
    await context.controller.update_entity_configs(entity, checked, validate_only=is_try)


async def _write_group(context: Context, name: str, update: ConfigsUpdate, is_try: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        problem = validate_group_configs(context.config, configs)
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_CONFIG, problem)
        return configs

    await context.controller.update_entity_configs(entity_path("groups", name), checked, validate_only=is_try)


async def _write_client_metrics(context: Context, name: str, update: ConfigsUpdate, is_try: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "The name of a subscription must not be empty.")

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        check_subscription(configs)
        return configs

    await context.controller.update_entity_configs(entity_path("client-metrics", name), checked, validate_only=is_try)


_Writer = Callable[["Context", str, ConfigsUpdate, bool], Awaitable[None]]
_WRITERS: Final[Mapping[ConfigResourceType, _Writer]] = {
    ConfigResourceType.TOPIC: _write_topic,
    ConfigResourceType.BROKER: _write_broker,
    ConfigResourceType.GROUP: _write_group,
    ConfigResourceType.CLIENT_METRICS: _write_client_metrics,
}
