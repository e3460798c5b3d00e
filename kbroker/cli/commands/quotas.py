"""`kbroker quotas`: lists, sets and deletes client quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from kbroker.cli.command import Command, Function, Group, bootstrap_option, json_option
from kbroker.cli.output import print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster

if TYPE_CHECKING:
    from kbroker.client.admin.quotas import ClientQuotas, QuotaEntity
    from kbroker.client.cluster import Cluster

__all__ = ["command"]

DEFAULT: Final = "default"
NAMES: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


@click.group("quotas", cls=Group)
def command() -> None:
    """List, set and delete client quotas."""


def _entity_options(function: Function) -> Function:
    for option, about in (("ip", "address"), ("client-id", "client id"), ("user", "user")):
        function = click.option(
            f"--{option}",
            option.replace("-", "_"),
            metavar="NAME",
            help=f"Quotas of this {about}; '{DEFAULT}' for every {about} that has none.",
        )(function)
    return function


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {"user": user, "client-id": client_id, "ip": ip}
    return {kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None}


def _parse_limits(_ctx: click.Context, _argument: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name.strip() in limits:
            raise click.BadParameter(f"'{name.strip()}' is given twice")
        try:
            limits[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise click.BadParameter(f"Expected QUOTA=NUMBER, for example producer_byte_rate=1048576, got '{text}'")
    return limits


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker quotas list", "List all quotas"),
        ("kbroker quotas list --client-id billing --json", "List the quotas of a client id as JSON"),
    ],
)
@_entity_options
@json_option
@bootstrap_option
def list_quotas(user: str | None, client_id: str | None, ip: str | None, as_json: bool, bootstrap: str) -> None:
    """List the quotas of users, client ids and addresses."""

    async def call(cluster: Cluster) -> list[ClientQuotas]:
        from kbroker.client.admin.quotas import describe_quotas

        return await describe_quotas(cluster, _entity(user, client_id, ip))

    found = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{"entity": dict(quotas.entity), "quotas": dict(quotas.limits)} for quotas in found])
    elif found:
        rows = [
            [_name(quotas.entity, "user"), _name(quotas.entity, "client-id"), _name(quotas.entity, "ip"), quota, number]
            for quotas in found
            for quota, number in ((name, _number(limit)) for name, limit in sorted(quotas.limits.items()))
        ]
        print_table(["user", "client id", "ip", "quota", "limit"], rows)
    else:
        click.echo("No quotas.", err=True)


def _name(entity: QuotaEntity, kind: str) -> str | None:
    return (entity[kind] or f"<{DEFAULT}>") if kind in entity else None


def _number(limit: float) -> str:
    return str(int(limit)) if limit.is_integer() else str(limit)


@command.command(
    "set",
    cls=Command,
    examples=[
        (
            "kbroker quotas set --client-id billing producer_byte_rate=1048576 consumer_byte_rate=2097152",
            "Limit a client id to 1 MiB/s of writes and 2 MiB/s of reads",
        ),
        ("kbroker quotas set --user default request_percentage=50", "Limit every user that has no quotas"),
        ("kbroker quotas set --ip 10.0.0.7 connection_creation_rate=5", "Limit new connections of an address"),
    ],
)
@_entity_options
@click.argument("limits", metavar="QUOTA=NUMBER...", nargs=-1, required=True, callback=_parse_limits)
@click.option("--validate-only", is_flag=True, help="Validate without changing anything.")
@bootstrap_option
def set_quotas(
    user: str | None,
    client_id: str | None,
    ip: str | None,
    limits: Mapping[str, float],
    validate_only: bool,
    bootstrap: str,
) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    QUOTA is producer_byte_rate or consumer_byte_rate (bytes per second), request_percentage (percent of a core),
    controller_mutation_rate (partitions per second), or for an address connection_creation_rate.
    """
    _alter(bootstrap, _required(user, client_id, ip), limits=limits, validate_only=validate_only)
    click.echo("The quotas are valid; nothing changed." if validate_only else "Set quotas.")


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker quotas delete --client-id billing producer_byte_rate", "Delete one quota of a client id"),
        ("kbroker quotas delete --user default", "Delete all default quotas of users"),
    ],
)
@_entity_options
@click.argument("names", metavar="[QUOTA]...", nargs=-1, type=click.Choice(NAMES))
@bootstrap_option
def delete_quotas(
    user: str | None, client_id: str | None, ip: str | None, names: Sequence[str], bootstrap: str
) -> None:
    """Delete quotas of a user, a client id, both together, or an address.

    Without QUOTA, deletes all of them.
    """
    entity = _required(user, client_id, ip)
    if not names:
        names = run_with_cluster(bootstrap, lambda cluster: _names_of(cluster, entity))
    if names:
        _alter(bootstrap, entity, limits={}, removed=names)
        click.echo(f"Deleted quotas: {', '.join(sorted(names))}.")
    else:
        click.echo("No quotas to delete.", err=True)


async def _names_of(cluster: Cluster, entity: QuotaEntity) -> list[str]:
    from kbroker.client.admin.quotas import describe_quotas

    found = await describe_quotas(cluster, entity)
    return [name for quotas in found if quotas.entity == entity for name in quotas.limits]


def _required(user: str | None, client_id: str | None, ip: str | None) -> QuotaEntity:
    entity = _entity(user, client_id, ip)
    if not entity:
        raise click.UsageError("Use --user, --client-id or --ip")
    if ip is not None and len(entity) > 1:
        raise click.UsageError("Use either --ip, or --user and --client-id")
    return entity


def _alter(
    bootstrap: str,
    entity: QuotaEntity,
    *,
    limits: Mapping[str, float],
    removed: Sequence[str] = (),
    validate_only: bool = False,
) -> None:
    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin.quotas import alter_quotas

        await alter_quotas(cluster, entity, limits=limits, removed=removed, validate_only=validate_only)

    run_with_cluster(bootstrap, call)
