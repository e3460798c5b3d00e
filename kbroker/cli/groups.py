"""`kbroker groups`: list, describe and delete consumer groups; their offsets are in group_offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.group_offsets import export_offsets, import_offsets, reset_offsets
from kbroker.cli.output import confirm_deletion, print_json, print_json_line, print_table, rich_table, tame

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kbroker.cli.group_report import Report
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


@click.group("groups", cls=Group)
def command() -> None:
    """List and describe consumer groups, move their offsets, delete them."""


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker groups list", "every group, its type and its state"),
        ("kbroker groups list --state empty --type classic --json", "groups that nobody reads with, for a program"),
    ],
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state. Repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(TYPES, case_sensitive=False),
    multiple=True,
    help="Only groups of this type. Repeatable.",
)
@json_option
@bootstrap_option
def list_groups(states: Sequence[str], types: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List the groups."""

    async def call(cluster: Cluster) -> list[tuple[str, str | None, str, str | None]]:
        from kbroker.client.groups import list_groups as ask

        found = await ask(cluster, states=states, types=types)
        return [(each.group_id, each.group_type, each.protocol_type, each.state) for each in found]

    columns = ("group", "type", "protocol type", "state")
    rows = call_cluster(bootstrap, call)
    if as_json:
        print_json([{name.replace(" ", "_"): cell for name, cell in zip(columns, row, strict=True)} for row in rows])
    elif rows:
        print_table(columns, rows)
    else:
        kind = " like that" if states or types else ""
        click.echo(f"there are no groups{kind}: a group is there once a consumer joins it or commits for it", err=True)


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker groups describe billing", "its members, and how far behind it is in each partition"),
        ("kbroker groups describe billing --watch", "the same, again every two seconds, until ctrl-C"),
        ("kbroker groups describe --json", "all groups, for a program"),
    ],
)
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--watch", "is_watched", is_flag=True, help="Show it again and again, until ctrl-C.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="How often --watch looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs; with --watch on one line each time.")
@bootstrap_option
def describe(names: Sequence[str], is_watched: bool, interval_s: float, as_json: bool, bootstrap: str) -> None:
    """Show state, coordinator, members and lag of groups; of all if none is named."""

    async def read(cluster: Cluster) -> list[Report]:
        from kbroker.cli.group_report import report_on
        from kbroker.client.groups import CLASSIC, CONSUMER
        from kbroker.client.groups import list_groups as ask

        await cluster.refresh([])
        chosen = names or [each.group_id for each in await ask(cluster, types=(CLASSIC, CONSUMER))]
        return [await report_on(cluster, name) for name in chosen]

    async def call(cluster: Cluster) -> None:
        if not is_watched:
            reports = await read(cluster)
            print_json([each.as_json() for each in reports]) if as_json else _print_reports(reports)
            return
        from kbroker.cli.watching import watch

        write = _print_json_reports if as_json else _print_reports
        await watch(lambda: read(cluster), render=_render_reports, write=write, interval_s=interval_s)

    call_cluster(bootstrap, call)


def _print_json_reports(reports: Sequence[Report]) -> None:
    print_json_line([each.as_json() for each in reports])


def _print_reports(reports: Sequence[Report]) -> None:
    for report in reports:
        click.echo(click.style(tame(report.title), bold=True))
        for section in report.sections():
            print_table(section.columns, section.rows)
            click.echo()


def _render_reports(reports: Sequence[Report]) -> RenderableType:
    from rich.console import Group as Stack
    from rich.text import Text

    parts: list[RenderableType] = []
    for report in reports:
        parts.append(Text(tame(report.title), style="bold"))
        for section in report.sections():
            parts += [rich_table(section.columns, section.rows), Text()]
    return Stack(*parts)


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker groups delete billing", "asks first, on a terminal"),
        ("kbroker groups delete billing shipping --yes", "two, without a question"),
    ],
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Pass over groups that are not there.")
@bootstrap_option
def delete(names: Sequence[str], yes: bool, if_exists: bool, bootstrap: str) -> None:
    """Delete groups and their offsets; they must have no members."""
    confirm_deletion(names, "its offsets", yes=yes)

    async def call(cluster: Cluster) -> None:
        from kbroker.cli.offset_plan import refuse_members
        from kbroker.client.failures import NoSuchGroup
        from kbroker.client.groups import delete_group

        for name in names:
            await refuse_members(cluster, name)
            try:
                await delete_group(cluster, name)
            except NoSuchGroup:
                if if_exists:
                    continue
                raise
            click.echo(f"group {name} deleted")

    call_cluster(bootstrap, call)


for _each in (reset_offsets, export_offsets, import_offsets):
    command.add_command(_each)
