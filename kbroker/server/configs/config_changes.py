"""Applies AlterConfigs and IncrementalAlterConfigs: validates the requested operations and writes the new configs.

The new configs are computed from the stored ones at the moment of the write, so that two clients do not undo each
other's changes. Components that use a config follow the image or the broker's config; the new value is in effect
before the client gets its response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.config.broker import BROKER_CONFIGS, validate_dynamic_configs
from kbroker.config.group import GROUP_CONFIGS, validate_group_configs
from kbroker.config.key import ConfigKey, ConfigType
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.config.topic import TOPIC_CONFIGS
from kbroker.controller.config_entities import entity_path
from kbroker.controller.controller import ConfigsUpdate
from kbroker.errors import Refusal, UserError
from kbroker.names import topic_name_problem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.types import MAX_STRING
from kbroker.server.configs.broker_loggers import check_change, set_level, unset_level
from kbroker.server.configs.client_metrics import check_subscription
from kbroker.server.configs.config_resources import authorization_refusal, resource_type
from kbroker.server.configs.listener_keys import listeners_with_keys, secrets_in
from kbroker.time_slice import TimeSlice, map_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["AlterConfigOp", "alter_resources", "incremental_ops", "replacing_ops"]


class AlterConfigOp(NamedTuple):
    """One change of one config (Kafka's `AlterConfigOp`)."""

    operation: int
    name: str
    text: str | None
    """The new value, or the items to append or subtract. None only with DELETE."""


ResourceOutcome = tuple[Any, Refusal | None]
"""A resource of the request, and the reason why it was refused, or None."""
_ReadOps = Callable[[Any], Sequence[AlterConfigOp]]

MAX_CHANGES: Final = 10_000

_TOO_MANY: Final = Refusal(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
_REPEATED: Final = Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")

# Without client metrics: APPEND and SUBTRACT do not apply to the configs of a subscription.
_TABLES: Final[Mapping[ConfigResourceType, Mapping[str, ConfigKey[Any]]]] = {
    ConfigResourceType.TOPIC: TOPIC_CONFIGS,
    ConfigResourceType.BROKER: BROKER_CONFIGS,
    ConfigResourceType.GROUP: GROUP_CONFIGS,
}


def incremental_ops(resource: Any) -> list[AlterConfigOp]:
    """Returns the operations of one resource of IncrementalAlterConfigs."""
    return [AlterConfigOp(config.config_operation, config.name, config.value) for config in resource.configs]


def replacing_ops(resource: Any) -> list[AlterConfigOp]:
    """Returns the configs of one resource of AlterConfigs as SET operations; they replace all others."""
    return [AlterConfigOp(ConfigOperation.SET, config.name, config.value) for config in resource.configs]


async def alter_resources(
    context: Context, request: Request, read_ops: _ReadOps, *, is_incremental: bool
) -> list[ResourceOutcome]:
    """Alters the resources of the request in order. A refused resource does not affect the others.

    Kafka's controller writes a record for each change, and refuses a request with more than 10,000 of them as a whole.
    A resource without changes counts as one: it takes as much time.
    """
    resources = request.body.resources
    counts: Counter[tuple[int, str]] = Counter()
    change_count = 0

    def count(resource: Any) -> None:
        nonlocal change_count
        counts[resource.resource_type, resource.resource_name] += 1
        change_count += len(resource.configs) or 1

    await map_in_slices(context.clock, count, resources)
    if change_count > MAX_CHANGES:
        return await map_in_slices(context.clock, lambda resource: (resource, _TOO_MANY), resources)
    outcomes: list[ResourceOutcome] = []
    time_slice = TimeSlice(context.clock)
    for resource in resources:
        outcome: Refusal | None = None
        if counts[resource.resource_type, resource.resource_name] > 1:
            outcome = _REPEATED
        else:
            try:
                await _alter(context, request, resource, read_ops(resource), is_incremental)
            except Refusal as refusal:
                outcome = refusal.with_traceback(None)  # its frames would stay in memory until the response
        outcomes.append((resource, outcome))
        await time_slice.checkpoint_if_over()
    return outcomes


async def _alter(
    context: Context, request: Request, resource: Any, ops: Sequence[AlterConfigOp], is_incremental: bool
) -> None:
    _validate_ops(ops)
    kind, name = resource_type(resource.resource_type), resource.resource_name
    if kind is ConfigResourceType.BROKER_LOGGER and not is_incremental:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind.value}")
    refusal = authorization_refusal(context, request, AclOperation.ALTER_CONFIGS, kind, name)
    if refusal is not None:
        raise refusal
    validate_only = request.body.validate_only
    if kind is ConfigResourceType.BROKER_LOGGER:
        _check_node_id(context, name)
        _alter_loggers(ops, validate_only=validate_only)
        return
    update = _update(_TABLES.get(kind, {}), ops, is_incremental=is_incremental)
    await _WRITERS[kind](context, name, update, validate_only)


def _validate_ops(ops: Sequence[AlterConfigOp]) -> None:
    if len({op.name for op in ops}) < len(ops):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls := [op.name for op in ops if op.text is None and op.operation != ConfigOperation.DELETE]:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if unknown := [op.operation for op in ops if op.operation not in list(ConfigOperation)]:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {unknown[0]}")


def _update(
    table: Mapping[str, ConfigKey[Any]], ops: Sequence[AlterConfigOp], *, is_incremental: bool
) -> ConfigsUpdate:
    def update(current: Mapping[str, str]) -> dict[str, str]:
        configs = dict(current) if is_incremental else {}
        for operation, name, text in ops:
            if operation == ConfigOperation.DELETE:
                configs.pop(name, None)
                continue
            assert text is not None
            if operation == ConfigOperation.SET:
                configs[name] = text
            else:
                configs[name] = _altered_list(table.get(name), operation, name, text, configs.get(name))
        return configs

    return update


def _altered_list(key: ConfigKey[Any] | None, operation: int, name: str, text: str, current: str | None) -> str:
    """Appends the items of `text` to a list config, or subtracts them. Starts from the default if `current` is None."""
    if key is None or key.type is not ConfigType.LIST:
        verb = ConfigOperation(operation).name
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
    items = [item for item in (key.default_text or "" if current is None else current).split(",") if item]
    given = text.split(",")
    if operation == ConfigOperation.SUBTRACT:
        subtracted = Counter(given)
        return ",".join(item for item in items if not _take(subtracted, item))
    present = set(items)
    value = ",".join([*items, *(item for item in dict.fromkeys(given) if item not in present)])
    if len(value.encode()) > MAX_STRING:  # no response could show it
        message = "The configuration value cannot be added because it exceeds the maximum value size of"
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{message} {MAX_STRING} bytes.")
    return value


def _take(counts: Counter[str], item: str) -> bool:
    """Counts the item down. Returns whether there was one: an item that is subtracted once is removed once."""
    if not counts[item]:
        return False
    counts[item] -= 1
    return True


def _check_node_id(context: Context, name: str) -> None:
    try:
        node_id = int(name)
    except ValueError:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if node_id != context.broker_id:
        message = f"Unexpected broker id, expected {context.broker_id}, but received {name}"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)


def _alter_loggers(ops: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
    for operation, name, text in ops:
        if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            message = f"{ConfigOperation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
            raise Refusal(ErrorCode.INVALID_REQUEST, message)
        check_change(name, text if operation == ConfigOperation.SET else None)
    for operation, name, text in () if validate_only else ops:
        if operation == ConfigOperation.SET and text is not None:
            set_level(name, text)
        else:
            unset_level(name)


async def _write_topic(context: Context, name: str, update: ConfigsUpdate, validate_only: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = topic_name_problem(name)
    if problem is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    await context.controller.update_topic_configs(name, update, validate_only=validate_only)


async def _write_broker(context: Context, name: str, update: ConfigsUpdate, validate_only: bool) -> None:
    if name:
        _check_node_id(context, name)

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        # Stored values are not validated again: another release may have written them.
        changed = {config: text for config, text in configs.items() if current.get(config) != text}
        problem = validate_dynamic_configs(changed, is_per_broker=bool(name)) or _keys_problem(
            context, changed, configs
        )
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_REQUEST, problem)
        touched.update(configs)
        return configs

    touched: set[str] = set()
    entity = entity_path("brokers", str(context.broker_id) if name else None)
    await context.controller.update_entity_configs(entity, checked, validate_only=validate_only)
    if not validate_only and name:
        # Also if no value has changed: the files may have, and this request is how an operator says so.
        _reload_keys(context, listeners_with_keys(touched))


def _keys_problem(context: Context, changed: Mapping[str, str], configs: Mapping[str, str]) -> str | None:
    """Returns why the keys of a listener cannot be changed so, or None."""
    if context.member is not None and (names := secrets_in(changed)):
        return f"Passwords and keys are not stored in ZooKeeper. Use files without a password: {', '.join(names)}"
    for listener in sorted(listeners_with_keys(configs) & context.listener_keys.keys()):
        problem = context.listener_keys[listener].problem_of(configs)
        if problem is not None:
            return problem
    return None


def _reload_keys(context: Context, listeners: Iterable[str]) -> None:
    for listener in sorted(listeners):
        keys = context.listener_keys.get(listener)
        if keys is not None:
            try:
                keys.reload()
            except UserError as problem:
                raise Refusal(ErrorCode.INVALID_REQUEST, str(problem)) from None


async def _write_group(context: Context, name: str, update: ConfigsUpdate, validate_only: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        problem = validate_group_configs(context.config, configs)
        if problem is not None:
            raise Refusal(ErrorCode.INVALID_CONFIG, problem)
        return configs

    await context.controller.update_entity_configs(entity_path("groups", name), checked, validate_only=validate_only)


async def _write_client_metrics(context: Context, name: str, update: ConfigsUpdate, validate_only: bool) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")

    def checked(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = update(current)
        check_subscription(configs)
        return configs

    await context.controller.update_entity_configs(
        entity_path("client-metrics", name), checked, validate_only=validate_only
    )


_Writer = Callable[["Context", str, ConfigsUpdate, bool], Awaitable[None]]
_WRITERS: Final[Mapping[ConfigResourceType, _Writer]] = {
    ConfigResourceType.TOPIC: _write_topic,
    ConfigResourceType.BROKER: _write_broker,
    ConfigResourceType.GROUP: _write_group,
    ConfigResourceType.CLIENT_METRICS: _write_client_metrics,
}
