"""`kbroker transactions`: list, describe and abort transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.output import print_json, print_table, time_text

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.transactions import ListedTransaction, TransactionDescription

__all__ = ["command"]

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group("transactions", cls=Group)
def command() -> None:
    """List and describe transactions, abort one that hangs."""


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker transactions list", "every transactional id, and what it is at"),
        ("kbroker transactions list --state ongoing --json", "those with a transaction open, for a program"),
    ],
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only those in this state. Repeatable.",
)
@json_option
@bootstrap_option
def list_transactions(states: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List the transactional ids."""

    async def call(cluster: Cluster) -> list[ListedTransaction]:
        from kbroker.client.transactions import list_transactions as ask

        return await ask(cluster, states=states)

    rows = call_cluster(bootstrap, call)
    if as_json:
        print_json([each._asdict() for each in rows])
    elif rows:
        print_table(("transactional id", "producer", "state", "coordinator"), rows)
    else:
        kind = " like that" if states else ""
        click.echo(f"there are no transactions{kind}: one is there once a producer asks for its id", err=True)


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker transactions describe payments", "its producer, since when it is open, and its partitions"),
        ("kbroker transactions describe payments refunds --json", "two, for a program"),
    ],
)
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_option
@bootstrap_option
def describe(names: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Show state, producer, timeout, begin and partitions of transactions."""

    async def call(cluster: Cluster) -> list[TransactionDescription]:
        from kbroker.client.transactions import describe_transaction

        return [await describe_transaction(cluster, name) for name in names]

    found = call_cluster(bootstrap, call)
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    columns = ("transactional id", "state", "producer", "epoch", "timeout ms", "begun", "partitions")
    rows = [
        (
            each.transactional_id,
            each.state,
            each.producer_id,
            each.producer_epoch,
            each.timeout_ms,
            time_text(each.start_ms),
            " ".join(f"{topic}-{index}" for topic, indexes in each.partitions.items() for index in indexes),
        )
        for each in found
    ]
    print_table(columns, rows)


def _as_json(found: TransactionDescription) -> dict[str, Any]:
    partitions = {topic: list(indexes) for topic, indexes in found.partitions.items()}
    return {**found._asdict(), "begun": time_text(found.start_ms), "partitions": partitions}


@command.command(
    "abort",
    cls=Command,
    examples=[("kbroker transactions abort payments", "readers of committed records go on; its producer is fenced")],
)
@click.argument("name", metavar="TRANSACTIONAL_ID")
@bootstrap_option
def abort(name: str, bootstrap: str) -> None:
    """Abort the transaction that is open and fence its producer."""

    async def call(cluster: Cluster) -> bool:
        from kbroker.client.transactions import abort_transaction

        return await abort_transaction(cluster, name)

    if call_cluster(bootstrap, call):
        click.echo(f"transaction {name} aborted")
    else:
        click.echo(f"transaction {name} is not open: nothing to abort", err=True)
