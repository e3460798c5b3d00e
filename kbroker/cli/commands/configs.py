"""`kbroker configs`: describes and alters the configs of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, parse_key_values
from kbroker.cli.name_completion import complete_configured_name
from kbroker.cli.output import print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.admin.configs import DescribedConfig
    from kbroker.client.cluster import Cluster
    from kbroker.config.resources import ConfigResourceType

__all__ = ["check_config_names", "command"]

KINDS: Final = ("topic", "broker", "group", "client-metrics", "broker-logger")
CLUSTER_DEFAULT: Final = "default"
"""Name of the cluster-wide default of broker configs; its resource name in the protocol is empty."""


@click.group("configs", cls=Group)
def command() -> None:
    """Describe and alter configs of topics, brokers and groups."""


_kind = click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
_name = click.argument("name", shell_complete=complete_configured_name)


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker configs describe topic orders --all", "Show all configs of a topic, including defaults"),
        (
            "kbroker configs describe topic orders retention.ms --documentation",
            "Show one config with its documentation",
        ),
        ("kbroker configs describe broker 1 --json", "Print the configs set on broker 1 as JSON"),
    ],
)
@_kind
@_name
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--all", "with_defaults", is_flag=True, help="Include configs that have their default value.")
@click.option("--documentation", "with_documentation", is_flag=True, help="Include the documentation of each config.")
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
    """Describe the configs of a resource.

    KIND is topic, broker, group, client-metrics or broker-logger. NAME is the resource's name; for a broker its id, or
    "default" for the cluster-wide default.
    """

    async def call(cluster: Cluster) -> list[DescribedConfig]:
        from kbroker.client.admin.configs import describe_configs

        resource_type, resource_name = await _resource(cluster, kind, name)
        entries = await describe_configs(
            cluster, resource_type, resource_name, keys=keys or None, with_documentation=with_documentation
        )
        _check_known(resource_type, resource_name, keys, entries)
        return entries

    entries = run_with_cluster(bootstrap, call)
    if not with_defaults and not keys:
        entries = [entry for entry in entries if not entry.is_default]
    if as_json:
        print_json([_to_json(entry, with_documentation) for entry in entries])
        return
    if not entries:
        click.echo(f"No configs are set on {kind} {name}. Use --all to include defaults.", err=True)
        return
    columns = ["config", "value", "source", "read-only"] + (["documentation"] if with_documentation else [])
    rows = [
        [
            entry.name,
            _value_text(entry),
            _source_text(entry),
            "yes" if entry.is_read_only else "",
            entry.documentation or "",
        ]
        for entry in entries
    ]
    print_table(columns, [row[: len(columns)] for row in rows])


def _value_text(entry: DescribedConfig) -> str:
    if entry.is_sensitive:
        return "(hidden)"
    return "" if entry.value is None else entry.value


def _source_text(entry: DescribedConfig) -> str:
    from kbroker.config.key import ConfigSource

    known = {source.value for source in ConfigSource}
    if entry.source not in known:
        return str(entry.source)
    return ConfigSource(entry.source).name.removesuffix("_CONFIG").lower().replace("_", " ")


def _to_json(entry: DescribedConfig, with_documentation: bool) -> dict[str, Any]:
    from kbroker.config.key import ConfigType

    known = {config_type.value for config_type in ConfigType}
    return {
        "name": entry.name,
        "value": entry.value,
        "source": _source_text(entry),
        "type": ConfigType(entry.config_type).name.lower() if entry.config_type in known else None,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        **({"documentation": entry.documentation} if with_documentation else {}),
    }


@command.command(
    "alter",
    cls=Command,
    examples=[
        ("kbroker configs alter topic orders --set retention.ms=3600000", "Keep records for one hour"),
        ("kbroker configs alter topic orders --append cleanup.policy=compact", "Append a value to a list config"),
        ("kbroker configs alter topic orders --delete retention.ms", "Reset a config to its default"),
        ("kbroker configs alter broker 1 --from-file broker.properties", "Set the configs of a file, with passwords"),
    ],
)
@_kind
@_name
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, callback=parse_key_values, help="Set a config. Repeatable."
)
@click.option(
    "--from-file",
    "file",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help="Set the configs of a properties file, as kafka-configs --add-config-file; '-' is stdin. For passwords: other "
    "users of the machine can read the values of --set.",
)
@click.option("--delete", "deleted", metavar="KEY", multiple=True, help="Reset a config to its default. Repeatable.")
@click.option(
    "--append",
    "appended",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_key_values,
    help="Append a value to a list config.",
)
@click.option(
    "--subtract",
    "subtracted",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_key_values,
    help="Remove a value from a list config.",
)
@click.option("--validate-only", is_flag=True, help="Validate without changing anything.")
@bootstrap_option
def alter(
    kind: str,
    name: str,
    settings: Mapping[str, str],
    file: TextIO | None,
    deleted: Sequence[str],
    appended: Mapping[str, str],
    subtracted: Mapping[str, str],
    validate_only: bool,
    bootstrap: str,
) -> None:
    """Alter the configs of a resource.

    KIND is topic, broker, group, client-metrics or broker-logger. NAME is the resource's name; for a broker its id, or
    "default" for the cluster-wide default.
    """
    if not (settings or file or deleted or appended or subtracted):
        raise click.UsageError("Nothing to change. Use --set, --from-file, --delete, --append or --subtract.")
    if settings and file is not None:
        raise click.UsageError("Use either --set or --from-file, not both")
    if file is not None:
        settings = _read_file(file)
    elif kind == "broker":
        _warn_about_secrets(settings)

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin.configs import ConfigChange, alter_configs
        from kbroker.config.resources import ConfigOperation

        changes = [
            *(ConfigChange(ConfigOperation.SET, key, value) for key, value in settings.items()),
            *(ConfigChange(ConfigOperation.DELETE, key) for key in deleted),
            *(ConfigChange(ConfigOperation.APPEND, key, value) for key, value in appended.items()),
            *(ConfigChange(ConfigOperation.SUBTRACT, key, value) for key, value in subtracted.items()),
        ]
        resource_type, resource_name = await _resource(cluster, kind, name)
        await check_config_names(cluster, resource_type, resource_name, deleted)
        await alter_configs(cluster, resource_type, resource_name, changes, validate_only=validate_only)

    run_with_cluster(bootstrap, call)
    if validate_only:
        click.echo(f"Configs for {kind} {name} are valid; nothing changed.")
    else:
        click.echo(f"Updated configs for {kind} {name}.")


def _read_file(file: TextIO) -> dict[str, str]:
    from kbroker.config.properties import read_properties

    settings = read_properties(file)
    if not settings:
        raise UserError(f"{file.name} has no configs")
    return settings


def _warn_about_secrets(settings: Mapping[str, str]) -> None:
    from kbroker.cli.visible_secrets import secrets_in, visible_secret

    for name in secrets_in(settings):
        click.echo(f"kbroker: warning: {visible_secret(name, file_option='--from-file')}", err=True)


async def _resource(cluster: Cluster, kind: str, name: str) -> tuple[ConfigResourceType, str]:
    from kbroker.config.resources import ConfigResourceType

    resource_type = ConfigResourceType[kind.upper().replace("-", "_")]
    if resource_type is ConfigResourceType.TOPIC:
        await cluster.topic(name)
    if resource_type is ConfigResourceType.BROKER and name == CLUSTER_DEFAULT:
        return resource_type, ""
    if resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and not name.isdecimal():
        raise click.UsageError(f"Expected a broker id or '{CLUSTER_DEFAULT}', got '{name}'")
    return resource_type, name


async def check_config_names(
    cluster: Cluster, resource_type: ConfigResourceType, name: str, keys: Sequence[str]
) -> None:
    """Raises UserError if a config does not exist: brokers ignore the deletion of an unknown name."""
    from kbroker.client.admin.configs import describe_configs

    if keys:
        entries = await describe_configs(cluster, resource_type, name, keys=keys)
        _check_known(resource_type, name, keys, entries)


def _check_known(
    resource_type: ConfigResourceType, name: str, keys: Sequence[str], entries: Sequence[DescribedConfig]
) -> None:
    from kbroker.config.resources import ConfigResourceType

    if resource_type not in (ConfigResourceType.TOPIC, ConfigResourceType.GROUP):
        return  # brokers describe only those that are set
    found = {entry.name for entry in entries}
    kind = resource_type.name.lower()
    for key in keys:
        if key not in found:
            raise UserError(
                f"Unknown {kind} config name: {key}. Run 'kbroker configs describe {kind} {name} --all' to see all "
                "configs."
            )
