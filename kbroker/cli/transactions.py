"""`kbroker transactions`: lists, describes and aborts transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.output import print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import format_timestamp

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.transactions import ListedTransaction, TransactionDescription

__all__ = ["command"]

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group("transactions", cls=Group)
def command() -> None:
    """List, describe and abort transactions."""


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker transactions list", "List all transactional ids with their states"),
        ("kbroker transactions list --state ongoing --json", "List ongoing transactions as JSON"),
    ],
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="List only transactions in this state. Repeatable.",
)
@json_option
@bootstrap_option
def list_transactions(states: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List transactional ids and their states."""

    async def call(cluster: Cluster) -> list[ListedTransaction]:
        from kbroker.client.transactions import list_transactions as fetch_transactions

        return await fetch_transactions(cluster, states=states)

    rows = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        print_table(("transactional id", "producer", "state", "coordinator"), rows)
    else:
        click.echo("No matching transactions." if states else "No transactions.", err=True)


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker transactions describe payments", "Show producer, start time and partitions"),
        ("kbroker transactions describe payments refunds --json", "Describe two transactions as JSON"),
    ],
)
@click.argument("names", metavar="TRANSACTIONAL_ID...", nargs=-1, required=True)
@json_option
@bootstrap_option
def describe(names: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Describe transactions: state, producer, timeout, start time and partitions."""

    async def call(cluster: Cluster) -> list[TransactionDescription]:
        from kbroker.client.transactions import describe_transaction

        return [await describe_transaction(cluster, name) for name in names]

    found = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([_to_json(transaction) for transaction in found])
        return
    columns = ("transactional id", "state", "producer", "epoch", "timeout ms", "start time", "partitions")
    rows = [
        (
            transaction.transactional_id,
            transaction.state,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            format_timestamp(transaction.start_ms),
            " ".join(f"{topic}-{index}" for topic, indexes in transaction.partitions.items() for index in indexes),
        )
        for transaction in found
    ]
    print_table(columns, rows)


def _to_json(found: TransactionDescription) -> dict[str, Any]:
    partitions = {topic: list(indexes) for topic, indexes in found.partitions.items()}
    return {**found._asdict(), "start_time": format_timestamp(found.start_ms), "partitions": partitions}


@command.command(
    "abort",
    cls=Command,
    examples=[("kbroker transactions abort payments", "Abort an ongoing transaction")],
)
@click.argument("name", metavar="TRANSACTIONAL_ID")
@bootstrap_option
def abort(name: str, bootstrap: str) -> None:
    """Abort an ongoing transaction.

    Its producer is fenced; read_committed consumers can continue.
    """

    async def call(cluster: Cluster) -> bool:
        from kbroker.client.transactions import abort_transaction

        return await abort_transaction(cluster, name)

    if run_with_cluster(bootstrap, call):
        click.echo(f"Aborted transaction {name}.")
    else:
        click.echo(f"Transaction {name} is not ongoing; nothing to abort.", err=True)
