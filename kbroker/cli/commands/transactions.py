"""`kbroker transactions`: lists, describes and aborts transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, partition_option, yes_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import confirm, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import format_timestamp, parse_timestamp_option

if TYPE_CHECKING:
    from kbroker.client.admin.active_producers import ActiveProducer
    from kbroker.client.admin.transactions import ListedTransaction, TransactionDescription
    from kbroker.client.cluster import Cluster

__all__ = ["command"]

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@click.group("transactions", cls=Group)
def command() -> None:
    """List, describe and abort transactions, and find hanging transactions."""


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
        from kbroker.client.admin.transactions import list_transactions as fetch_transactions

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
        from kbroker.client.admin.transactions import describe_transaction

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
    examples=[
        ("kbroker transactions abort payments", "Abort an ongoing transaction; asks for confirmation on a terminal"),
        ("kbroker transactions abort refunds --yes", "Abort a transaction without confirmation"),
    ],
)
@click.argument("name", metavar="TRANSACTIONAL_ID")
@yes_option
@bootstrap_option
def abort(name: str, yes: bool, bootstrap: str) -> None:
    """Abort an ongoing transaction.

    Its producer is fenced, and its records are lost to read_committed consumers, which can continue.
    """
    confirm(f"Abort the ongoing transaction of {name}?", yes=yes)

    async def call(cluster: Cluster) -> bool:
        from kbroker.client.admin.transactions import abort_transaction

        return await abort_transaction(cluster, name)

    if run_with_cluster(bootstrap, call):
        click.echo(f"Aborted transaction {name}.")
    else:
        click.echo(f"Transaction {name} is not ongoing; nothing to abort.", err=True)


@command.command(
    "producers",
    cls=Command,
    examples=[
        ("kbroker transactions producers orders", "Show the producers of each partition and their open transactions"),
        ("kbroker transactions producers orders --partition 0 --json", "Show the producers of a partition as JSON"),
    ],
)
@click.argument("topic", shell_complete=complete_topic)
@partition_option("Only this partition. Repeatable.")
@json_option
@bootstrap_option
def producers(topic: str, partitions: Sequence[int], as_json: bool, bootstrap: str) -> None:
    """Show the producers of partitions: id, epoch, last sequence, and where an open transaction begins."""

    async def call(cluster: Cluster) -> list[ActiveProducer]:
        from kbroker.client.admin.active_producers import describe_producers

        return await describe_producers(cluster, await cluster.topic(topic), partitions)

    _print_producers(run_with_cluster(bootstrap, call), as_json=as_json, none="No producers.")


@command.command(
    "find-hanging",
    cls=Command,
    examples=[
        ("kbroker transactions find-hanging", "Look in all topics for transactions without a coordinator"),
        ("kbroker transactions find-hanging orders --older-than 1h", "Look in one topic, ignore the last hour"),
    ],
)
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option(
    "--older-than",
    "before_ms",
    metavar="TIME",
    default="20m",
    show_default=True,
    callback=parse_timestamp_option,
    help="Ignore transactions with records that are newer.",
)
@json_option
@bootstrap_option
def find_hanging(names: Sequence[str], before_ms: int, as_json: bool, bootstrap: str) -> None:
    """Find transactions that their coordinator does not know.

    No client can end them, and read_committed consumers wait for them. End them with abort-hanging.
    """

    async def call(cluster: Cluster) -> list[ActiveProducer]:
        from kbroker.client.admin.active_producers import find_hanging as search

        topics = [await cluster.topic(name) for name in names] if names else await cluster.topics()
        return await search(cluster, topics, before_ms=before_ms)

    _print_producers(run_with_cluster(bootstrap, call), as_json=as_json, none="No hanging transactions.")


def _print_producers(found: Sequence[ActiveProducer], *, as_json: bool, none: str) -> None:
    if as_json:
        print_json([producer._asdict() for producer in found])
        return
    if not found:
        click.echo(none, err=True)
        return
    columns = ("topic", "partition", "producer", "epoch", "last sequence", "last time", "open since offset")
    rows = [
        (
            producer.topic,
            producer.partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            format_timestamp(producer.last_timestamp),
            None if producer.start_offset < 0 else producer.start_offset,
        )
        for producer in found
    ]
    print_table(columns, rows)


@command.command(
    "abort-hanging",
    cls=Command,
    examples=[
        (
            "kbroker transactions abort-hanging orders --partition 0 --start-offset 1234",
            "Abort a transaction that find-hanging has found",
        ),
    ],
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--partition", type=click.IntRange(0), metavar="N", required=True, help="Partition of the transaction.")
@click.option(
    "--start-offset", type=click.IntRange(0), metavar="OFFSET", required=True, help="First offset of the transaction."
)
@yes_option
@bootstrap_option
def abort_hanging(topic: str, partition: int, start_offset: int, yes: bool, bootstrap: str) -> None:
    """Abort a hanging transaction of a partition.

    Use abort for transactions that have a coordinator: this command may make a transaction incomplete.
    """
    confirm(f"Abort the transaction of {topic}-{partition} that begins at offset {start_offset}?", yes=yes)

    async def call(cluster: Cluster) -> ActiveProducer:
        from kbroker.client.admin.active_producers import abort_hanging as write_marker

        return await write_marker(cluster, await cluster.topic(topic), partition, start_offset=start_offset)

    found = run_with_cluster(bootstrap, call)
    click.echo(f"Aborted the transaction of producer {found.producer_id} in {topic}-{partition}.")
