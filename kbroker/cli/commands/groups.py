"""`kbroker groups`: lists, describes and deletes groups. The commands for offsets are in group_offsets.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, yes_option
from kbroker.cli.commands.group_offsets import delete_offsets, export_offsets, import_offsets, reset_offsets
from kbroker.cli.name_completion import complete_group
from kbroker.cli.output import (
    confirm,
    escape_control_characters,
    print_json,
    print_json_line,
    print_table,
    rich_table,
)
from kbroker.cli.run_with_cluster import run_with_cluster

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kbroker.cli.group_report import GroupReport
    from kbroker.client.cluster import Cluster

__all__ = ["command"]

STATES: Final = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
TYPES: Final = ("classic", "consumer", "share", "streams")
_NO_GROUPS: Final = "No groups."


@click.group("groups", cls=Group)
def command() -> None:
    """Manage consumer groups and their offsets."""


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker groups list", "List all groups with type and state"),
        ("kbroker groups list --state empty --type classic --json", "List groups without members as JSON"),
    ],
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="List only groups in this state. Repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(TYPES, case_sensitive=False),
    multiple=True,
    help="List only groups of this type. Repeatable.",
)
@json_option
@bootstrap_option
def list_groups(states: Sequence[str], types: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List groups."""

    async def call(cluster: Cluster) -> list[tuple[str, str | None, str, str | None]]:
        from kbroker.client.admin.groups import list_groups as fetch_groups

        found = await fetch_groups(cluster, states=states, types=types)
        return [(group.group_id, group.group_type, group.protocol_type, group.state) for group in found]

    columns = ("group", "type", "protocol type", "state")
    rows = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{name.replace(" ", "_"): cell for name, cell in zip(columns, row, strict=True)} for row in rows])
    elif rows:
        print_table(columns, rows)
    else:
        click.echo("No matching groups." if states or types else _NO_GROUPS, err=True)


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker groups describe billing", "Show members and lag"),
        ("kbroker groups describe billing --watch", "Refresh every two seconds until Ctrl-C"),
        ("kbroker groups describe --json", "Describe all groups as JSON"),
    ],
)
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=complete_group)
@click.option("--watch", "is_watched", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="Seconds between refreshes of --watch.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line per refresh.")
@bootstrap_option
def describe(names: Sequence[str], is_watched: bool, interval_s: float, as_json: bool, bootstrap: str) -> None:
    """Describe groups: state, coordinator, members and lag.

    Without GROUP, describes all groups.
    """

    async def read(cluster: Cluster) -> list[GroupReport]:
        from kbroker.cli.group_report import read_group_report
        from kbroker.client.admin.groups import CLASSIC, CONSUMER
        from kbroker.client.admin.groups import list_groups as fetch_groups

        await cluster.refresh([])
        group_ids = names or [group.group_id for group in await fetch_groups(cluster, types=(CLASSIC, CONSUMER))]
        return [await read_group_report(cluster, group_id) for group_id in group_ids]

    async def call(cluster: Cluster) -> None:
        if not is_watched:
            reports = await read(cluster)
            print_json([report.as_json() for report in reports]) if as_json else _print_reports(reports)
            return
        from kbroker.cli.live_view import watch

        write = _print_json_reports if as_json else _print_refreshed
        await watch(lambda: read(cluster), render=_render_reports, write=write, interval_s=interval_s)

    run_with_cluster(bootstrap, call)


def _print_json_reports(reports: Sequence[GroupReport]) -> None:
    print_json_line([report.as_json() for report in reports])


def _print_reports(reports: Sequence[GroupReport]) -> None:
    if not reports:
        click.echo(_NO_GROUPS, err=True)
    for number, report in enumerate(reports):
        if number:
            click.echo()
        click.echo(click.style(escape_control_characters(report.title), bold=True))
        for place, section in enumerate(report.sections()):
            if place:
                click.echo()
            print_table(section.columns, section.rows)


def _print_refreshed(reports: Sequence[GroupReport]) -> None:
    _print_reports(reports)
    click.echo()


def _render_reports(reports: Sequence[GroupReport]) -> RenderableType:
    from rich.console import Group as Stack
    from rich.text import Text

    parts: list[RenderableType] = []
    for report in reports:
        parts.append(Text(escape_control_characters(report.title), style="bold"))
        for section in report.sections():
            parts += [rich_table(section.columns, section.rows), Text()]
    return Stack(*parts)


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker groups delete billing", "Delete a group; asks for confirmation on a terminal"),
        ("kbroker groups delete billing shipping --yes", "Delete two groups without confirmation"),
    ],
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_group)
@yes_option
@click.option("--if-exists", is_flag=True, help="Skip groups that do not exist.")
@bootstrap_option
def delete(names: Sequence[str], yes: bool, if_exists: bool, bootstrap: str) -> None:
    """Delete groups and their offsets.

    The groups must have no active members.
    """
    confirm(f"Delete {', '.join(names)} and {'all their' if len(names) > 1 else 'all its'} offsets?", yes=yes)

    async def call(cluster: Cluster) -> None:
        from kbroker.cli.offset_plan import require_no_members
        from kbroker.client.admin.groups import delete_group
        from kbroker.client.failures import NoSuchGroup

        for name in names:
            await require_no_members(cluster, name)
            try:
                await delete_group(cluster, name)
            except NoSuchGroup:
                if if_exists:
                    continue
                raise
            click.echo(f"Deleted group {name}.")

    run_with_cluster(bootstrap, call)


for _command in (reset_offsets, delete_offsets, export_offsets, import_offsets):
    command.add_command(_command)
