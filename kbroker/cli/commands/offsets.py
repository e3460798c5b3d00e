"""`kbroker offsets`: earliest and latest offsets of partitions, or the offsets for a timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, bootstrap_option, json_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import format_timestamp, parse_timestamp_option

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.command(
    "offsets",
    cls=Command,
    examples=[
        ("kbroker offsets orders", "Show the earliest and latest offset of each partition"),
        ("kbroker offsets orders --at 2026-01-31T12:00", "Show the first offset at or after a timestamp (UTC)"),
        ("kbroker offsets orders --at 15m --json", "Print the first offset of the last 15 minutes as JSON"),
    ],
)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option(
    "--at",
    "at_ms",
    metavar="TIME",
    callback=parse_timestamp_option,
    help="Show the first offset at or after a timestamp: ISO 8601, milliseconds since 1970, or an age like 15m.",
)
@json_option
@bootstrap_option
def command(names: Sequence[str], at_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Show earliest and latest offsets, or offsets by timestamp."""

    async def call(cluster: Cluster) -> list[dict[str, Any]]:
        rows = []
        for name in names:
            rows += await (_read_offsets_at(cluster, name, at_ms) if at_ms is not None else _read_ranges(cluster, name))
        return rows

    rows = run_with_cluster(bootstrap, call)
    if as_json:
        print_json(rows)
    else:
        columns = list(rows[0]) if rows else ["topic"]
        print_table(columns, [[_cell(name, row[name]) for name in columns] for row in rows])


def _cell(name: str, value: Any) -> Any:
    return format_timestamp(value) if name == "timestamp" and value is not None else value


async def _read_ranges(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    from kbroker.client.offsets import EARLIEST, LATEST, list_offsets

    numbers = [partition.number for partition in (await cluster.topic(name)).partitions]
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


async def _read_offsets_at(cluster: Cluster, name: str, at_ms: int) -> list[dict[str, Any]]:
    """Returns a row per partition; offset and timestamp are None if no record is that new."""
    from kbroker.client.offsets import NO_OFFSET, list_offsets

    numbers = [partition.number for partition in (await cluster.topic(name)).partitions]
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
