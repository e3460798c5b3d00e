"""`kbroker offsets`: where the partitions of topics begin and end, or where a moment lies in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, bootstrap_option, json_option
from kbroker.cli.moments import moment
from kbroker.cli.output import print_json, print_table, time_text

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.command(
    "offsets",
    cls=Command,
    examples=[
        ("kbroker offsets orders", "the first and the next offset of each partition, and how many lie between"),
        ("kbroker offsets orders --at 2026-01-31T12:00", "the first record at or after noon, UTC"),
        ("kbroker offsets orders --at 15m --json", "the first record of the last 15 minutes, for a program"),
    ],
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--at", "at_ms", metavar="TIME", callback=moment, help="A moment: ISO 8601, milliseconds, or 15m ago.")
@json_option
@bootstrap_option
def command(names: Sequence[str], at_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Show the offsets of topics."""

    async def call(cluster: Cluster) -> list[dict[str, Any]]:
        rows = []
        for name in names:
            rows += await (_at(cluster, name, at_ms) if at_ms is not None else _ranges(cluster, name))
        return rows

    rows = call_cluster(bootstrap, call)
    if as_json:
        print_json(rows)
    else:
        columns = list(rows[0]) if rows else ["topic"]
        print_table(columns, [[_cell(name, row[name]) for name in columns] for row in rows])


def _cell(name: str, value: Any) -> Any:
    return time_text(value) if name == "timestamp" and value is not None else value


async def _ranges(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    from kbroker.client.offsets import EARLIEST, LATEST, list_offsets

    numbers = [each.number for each in (await cluster.topic(name)).partitions]
    earliest = await list_offsets(cluster, name, dict.fromkeys(numbers, EARLIEST))
    latest = await list_offsets(cluster, name, dict.fromkeys(numbers, LATEST))
    return [
        {
            "topic": name,
            "partition": number,
            "earliest": earliest[number].offset,
            "latest": latest[number].offset,
            "offsets": latest[number].offset - earliest[number].offset,
        }
        for number in numbers
    ]


async def _at(cluster: Cluster, name: str, at_ms: int) -> list[dict[str, Any]]:
    """Null where no record is that young."""
    from kbroker.client.offsets import NO_OFFSET, list_offsets

    numbers = [each.number for each in (await cluster.topic(name)).partitions]
    found = await list_offsets(cluster, name, dict.fromkeys(numbers, at_ms))
    return [
        {
            "topic": name,
            "partition": number,
            "offset": None if found[number].offset == NO_OFFSET else found[number].offset,
            "timestamp": None if found[number].offset == NO_OFFSET else found[number].timestamp,
        }
        for number in numbers
    ]
