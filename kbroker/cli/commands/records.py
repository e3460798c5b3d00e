"""`kbroker records`: deletes the oldest records of partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, partition_option, yes_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import confirm, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import parse_timestamp_option
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["command"]

Offsets = dict[str, dict[int, int]]
"""Topic -> partition -> first offset to keep."""


@click.group("records", cls=Group)
def command() -> None:
    """Delete the records of a topic up to an offset or timestamp."""


def _check_before(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and text != "latest" and not re.fullmatch(r"[0-9]{1,18}", text):
        raise click.BadParameter(f"Expected an offset or latest, got '{text}'")
    return text


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker records delete orders --partition 0 --before 1", "Delete the records before an offset"),
        ("kbroker records delete orders --before latest", "Delete all records, but keep the topic"),
        ("kbroker records delete orders --before-time 7d --yes", "Delete records older than seven days, do not ask"),
        ("kbroker records delete --from-file offsets.json", "Use the file of kafka-delete-records --offset-json-file"),
    ],
)
@click.argument("topic", required=False, shell_complete=complete_topic)
@partition_option("Delete only in this partition. Repeatable.")
@click.option(
    "--before", metavar="OFFSET", callback=_check_before, help="First offset to keep, or latest to delete all records."
)
@click.option(
    "--before-time",
    "before_ms",
    metavar="TIME",
    callback=parse_timestamp_option,
    help="Delete up to a timestamp: ISO 8601, milliseconds since 1970, or an age like 15m.",
)
@click.option(
    "--from-file",
    "file",
    type=click.File("r", encoding="utf-8"),
    help="JSON file with topics, partitions and offsets, as for kafka-delete-records.",
)
@yes_option
@json_option
@bootstrap_option
def delete(
    topic: str | None,
    partitions: Sequence[int],
    before: str | None,
    before_ms: int | None,
    file: IO[str] | None,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Delete the oldest records of a topic.

    Consumers continue at the first remaining record. The space is freed when whole segments are deleted.
    """
    if sum(option is not None for option in (before, before_ms, file)) != 1:
        raise click.UsageError("Use exactly one of --before, --before-time and --from-file")
    if (topic is None) != (file is not None) or (file is not None and partitions):
        raise click.UsageError("Use either TOPIC or --from-file")
    given = {} if file is None else _read_file(file)
    confirm(f"Delete records of {', '.join(given) or topic}?", yes=yes)

    async def call(cluster: Cluster) -> list[tuple[str, int, int]]:
        from kbroker.client.admin.records import delete_records
        from kbroker.client.failures import BrokerRefusal

        offsets = given or {str(topic): await _find_offsets(cluster, str(topic), partitions, before, before_ms)}
        try:
            return [
                (name, number, low_watermark)
                for name, wanted in offsets.items()
                for number, low_watermark in sorted((await delete_records(cluster, name, wanted)).items())
            ]
        except BrokerRefusal as refusal:
            if sum(map(len, offsets.values())) == 1:
                raise
            shown = f"'kbroker offsets {' '.join(offsets)}' shows what is left"
            raise UserError(f"{refusal}. Records of other partitions may be deleted: {shown}.") from None

    rows = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{"topic": name, "partition": number, "earliest": offset} for name, number, offset in rows])
    else:
        print_table(["topic", "partition", "earliest"], rows)


async def _find_offsets(
    cluster: Cluster, name: str, partitions: Sequence[int], before: str | None, before_ms: int | None
) -> dict[int, int]:
    from kbroker.client.admin.records import HIGH_WATERMARK
    from kbroker.client.offsets import NO_OFFSET, list_offsets

    topic = await cluster.topic(name)
    numbers = [topic.partition(number).number for number in partitions] or [
        partition.number for partition in topic.partitions
    ]
    if before_ms is None:
        return dict.fromkeys(numbers, HIGH_WATERMARK if before == "latest" else int(before or 0))
    found = await list_offsets(cluster, name, dict.fromkeys(numbers, before_ms))
    # No record is that new: all are older.
    return {number: HIGH_WATERMARK if place.offset == NO_OFFSET else place.offset for number, place in found.items()}


def _read_file(file: IO[str]) -> Offsets:
    """Reads {"partitions": [{"topic": "orders", "partition": 0, "offset": 10}], "version": 1}."""
    try:
        content: Any = json.load(file)
        offsets: Offsets = {}
        for entry in content["partitions"]:
            offsets.setdefault(_topic_of(entry), {})[int(entry["partition"])] = int(entry["offset"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f'{file.name} must contain {{"partitions": [{{"topic": "orders", "partition": 0, "offset": 10}}]}}: '
            f"{type(problem).__name__} {problem}"
        ) from None
    if not offsets:
        raise UserError(f"{file.name} has no partitions")
    return offsets


def _topic_of(entry: Mapping[str, Any]) -> str:
    name = entry["topic"]
    if not isinstance(name, str):
        raise TypeError("topic must be a text")
    return name
