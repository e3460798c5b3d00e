"""`kbroker leaders`: elects partition leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, partition_option, yes_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import confirm, pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.admin.leaders import ElectionOutcome
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.group("leaders", cls=Group)
def command() -> None:
    """Elect partition leaders."""


@command.command(
    "elect",
    cls=Command,
    examples=[
        ("kbroker leaders elect --all", "Give all partitions back to their preferred leaders, after a restart"),
        ("kbroker leaders elect orders customers", "Elect the preferred leaders of two topics"),
        (
            "kbroker leaders elect orders --partition 0 --unclean",
            "Elect a replica that is not in sync, if no other is alive: records may be lost",
        ),
    ],
)
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option("--all", "is_all", is_flag=True, help="All partitions of all topics.")
@partition_option("Only this partition of TOPIC. Repeatable.")
@click.option(
    "--unclean", is_flag=True, help="Elect any live replica for partitions without a leader. Records may be lost."
)
@yes_option
@json_option
@bootstrap_option
def elect(
    names: Sequence[str],
    is_all: bool,
    partitions: Sequence[int],
    unclean: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Elect the preferred leader of partitions: the first replica in the assignment.

    With --unclean, elects any live replica for partitions without a leader, and asks for confirmation.
    """
    if bool(names) == is_all:
        raise click.UsageError("Use either TOPIC or --all")
    if partitions and len(names) != 1:
        raise click.UsageError("--partition needs exactly one TOPIC")
    if unclean:
        subject = "all partitions" if is_all else ", ".join(names)
        confirm(f"Elect leaders of {subject} that may lack acknowledged records?", yes=yes)

    async def call(cluster: Cluster) -> list[ElectionOutcome]:
        from kbroker.client.admin.leaders import elect_leaders

        if is_all:
            return await elect_leaders(cluster, None, is_unclean=unclean)
        topics = [await cluster.topic(name) for name in names]
        wanted = {
            topic.name: [topic.partition(number).number for number in partitions]
            or [partition.number for partition in topic.partitions]
            for topic in topics
        }
        return await elect_leaders(cluster, wanted, is_unclean=unclean)

    outcomes = run_with_cluster(bootstrap, call)
    elected = [outcome for outcome in outcomes if outcome.error.name == "NONE"]
    failed = [outcome for outcome in outcomes if outcome.error.name not in ("NONE", "ELECTION_NOT_NEEDED")]
    if as_json:
        fields = ("topic", "partition", "result", "message")
        print_json([dict(zip(fields, _row(outcome), strict=True)) for outcome in outcomes])
    else:
        if outcomes:
            print_table(["topic", "partition", "result"], [_row(outcome)[:3] for outcome in outcomes])
        click.echo(f"Elected leaders of {pluralize(len(elected), 'partition')}.")
    if failed:
        first = failed[0]
        raise UserError(
            f"Could not elect leaders of {pluralize(len(failed), 'partition')}. "
            f"The first is {first.topic}-{first.partition}: {first.message or first.error.name}"
        )


def _row(outcome: ElectionOutcome) -> tuple[str, int, str, str | None]:
    names = {"NONE": "elected", "ELECTION_NOT_NEEDED": "not needed"}
    result = names.get(outcome.error.name, outcome.error.name)
    return outcome.topic, outcome.partition, result, outcome.message
