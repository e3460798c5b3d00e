"""`kbroker configs`: what topics, brokers and groups are configured to do, and changes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, Group, bootstrap_option, json_option, key_values
from kbroker.cli.output import print_json, print_table

if TYPE_CHECKING:
    from kbroker.client.admin import ConfigEntry, ResourceType
    from kbroker.client.cluster import Cluster

__all__ = ["command"]

KINDS: Final = ("topic", "broker", "group", "client-metrics", "broker-logger")
EVERY_BROKER: Final = "default"


@click.group("configs", cls=Group)
def command() -> None:
    """Show and change the configs of topics and brokers."""


_kind = click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
_name = click.argument("name")


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker configs describe topic orders --all", "every config of a topic, set or not"),
        ("kbroker configs describe topic orders retention.ms --documentation", "one, and what it means"),
        ("kbroker configs describe broker 1 --json", "what is set on broker 1, for a program"),
    ],
)
@_kind
@_name
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--all", "with_defaults", is_flag=True, help="Those that have their default value too.")
@click.option("--documentation", "with_documentation", is_flag=True, help="What each of them means.")
@json_option
@bootstrap_option
def describe(
    kind: str,
    name: str,
    keys: Sequence[str],
    with_defaults: bool,
    with_documentation: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Show the configs of a topic, broker, group, client-metrics or broker-logger.

    The broker named "default" stands for what all brokers have in common.
    """

    async def call(cluster: Cluster) -> list[ConfigEntry]:
        from kbroker.client.admin import describe_configs

        resource_type, resource_name = await _resource(cluster, kind, name)
        return await describe_configs(
            cluster, resource_type, resource_name, keys=keys or None, with_documentation=with_documentation
        )

    entries = call_cluster(bootstrap, call)
    if not with_defaults and not keys:
        entries = [each for each in entries if not each.is_default]
    if as_json:
        print_json([_json_of(each, with_documentation) for each in entries])
        return
    if not entries:
        click.echo(f"nothing is set on {kind} {name}: --all shows the defaults", err=True)
        return
    columns = ["config", "value", "from", "read-only"] + (["documentation"] if with_documentation else [])
    rows = [
        [each.name, _value_of(each), _source_of(each), "yes" if each.is_read_only else "", each.documentation or ""]
        for each in entries
    ]
    print_table(columns, [row[: len(columns)] for row in rows])


def _value_of(entry: ConfigEntry) -> str:
    if entry.is_sensitive:
        return "(hidden)"
    return "" if entry.value is None else entry.value


def _source_of(entry: ConfigEntry) -> str:
    from kbroker.client.admin import ConfigSource

    known = {each.value for each in ConfigSource}
    return ConfigSource(entry.source).name.lower().replace("_", " ") if entry.source in known else str(entry.source)


def _json_of(entry: ConfigEntry, with_documentation: bool) -> dict[str, Any]:
    from kbroker.client.admin import ConfigType

    known = {each.value for each in ConfigType}
    return {
        "name": entry.name,
        "value": entry.value,
        "source": _source_of(entry),
        "type": ConfigType(entry.config_type).name.lower() if entry.config_type in known else None,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        **({"documentation": entry.documentation} if with_documentation else {}),
    }


@command.command(
    "alter",
    cls=Command,
    examples=[
        ("kbroker configs alter topic orders --set retention.ms=3600000", "keep records for an hour"),
        ("kbroker configs alter topic orders --append cleanup.policy=compact", "one more element of a list"),
        ("kbroker configs alter topic orders --delete retention.ms", "back to the default"),
    ],
)
@_kind
@_name
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, callback=key_values, help="A new value. Repeatable."
)
@click.option("--delete", "deleted", metavar="KEY", multiple=True, help="Back to the default. Repeatable.")
@click.option("--append", "appended", metavar="KEY=VALUE", multiple=True, callback=key_values, help="To a list.")
@click.option("--subtract", "subtracted", metavar="KEY=VALUE", multiple=True, callback=key_values, help="From a list.")
@click.option("--validate-only", is_flag=True, help="Say whether it could be done, and change nothing.")
@bootstrap_option
def alter(
    kind: str,
    name: str,
    settings: Mapping[str, str],
    deleted: Sequence[str],
    appended: Mapping[str, str],
    subtracted: Mapping[str, str],
    validate_only: bool,
    bootstrap: str,
) -> None:
    """Change the configs of a topic, broker, group, client-metrics or broker-logger.

    The broker named "default" stands for all brokers.
    """
    if not (settings or deleted or appended or subtracted):
        raise click.UsageError("nothing to change: give --set, --delete, --append or --subtract")

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin import ConfigChange, ConfigOperation, alter_configs

        changes = [
            *(ConfigChange(ConfigOperation.SET, key, value) for key, value in settings.items()),
            *(ConfigChange(ConfigOperation.DELETE, key) for key in deleted),
            *(ConfigChange(ConfigOperation.APPEND, key, value) for key, value in appended.items()),
            *(ConfigChange(ConfigOperation.SUBTRACT, key, value) for key, value in subtracted.items()),
        ]
        resource_type, resource_name = await _resource(cluster, kind, name)
        await alter_configs(cluster, resource_type, resource_name, changes, validate_only=validate_only)

    call_cluster(bootstrap, call)
    click.echo(f"configs of {kind} {name} {'can be altered so' if validate_only else 'altered'}")


async def _resource(cluster: Cluster, kind: str, name: str) -> tuple[ResourceType, str]:
    from kbroker.client.admin import ResourceType

    resource_type = ResourceType[kind.upper().replace("-", "_")]
    if resource_type is ResourceType.TOPIC:
        await cluster.topic(name)
    if resource_type is ResourceType.BROKER and name == EVERY_BROKER:
        return resource_type, ""
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and not name.isdecimal():
        raise click.UsageError(f"a broker has a number, or is called '{EVERY_BROKER}': not '{name}'")
    return resource_type, name
