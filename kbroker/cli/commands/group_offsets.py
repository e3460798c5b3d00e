"""`kbroker groups reset-offsets`, `delete-offsets`, `export-offsets`, `import-offsets`: committed offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

import click

from kbroker.cli.command import Command, Function, bootstrap_option, json_option, yes_option
from kbroker.cli.name_completion import complete_group
from kbroker.cli.output import confirm, pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import parse_timestamp_option
from kbroker.errors import UserError
from kbroker.names import topic_name_problem

if TYPE_CHECKING:
    from kbroker.cli.offset_plan import OffsetChange, ResetTarget
    from kbroker.client.cluster import Cluster

__all__ = ["delete_offsets", "export_offsets", "import_offsets", "reset_offsets"]


def _parse_topic_selections(
    _ctx: click.Context, _option: click.Parameter, texts: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Parses `orders` or `orders:0,1` (click callback). A topic name cannot contain a colon."""
    selections = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
        if colon and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers):
            raise click.BadParameter(f"Expected TOPIC or TOPIC:0,1, got '{text}'")
        selections.append((name, [int(number) for number in numbers.split(",")] if colon else []))
    return selections


def _topic_option(function: Function) -> Function:
    return click.option(
        "--topic",
        "topics",
        metavar="TOPIC[:0,1]",
        multiple=True,
        callback=_parse_topic_selections,
        help="Topic, or partitions of a topic, to include. Repeatable.",
    )(function)


def _execute_option(function: Function) -> Function:
    return click.option("--execute", is_flag=True, help="Apply the change. Without it, only print the new offsets.")(
        function
    )


def _check_reset_to(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and text not in ("earliest", "latest") and not re.fullmatch(r"[0-9]{1,18}", text):
        raise click.BadParameter(f"Expected earliest, latest or an offset, got '{text}'")
    return text


@click.command(
    "reset-offsets",
    cls=Command,
    examples=[
        (
            "kbroker groups reset-offsets billing --topic orders --to earliest",
            "Preview a reset to the earliest offsets",
        ),
        (
            "kbroker groups reset-offsets billing --topic orders --to earliest --execute",
            "Reset to the earliest offsets",
        ),
        (
            "kbroker groups reset-offsets billing --topic orders:0,2 --to-time 2026-01-31T12:00 --execute",
            "Reset two partitions to a timestamp (UTC)",
        ),
        (
            "kbroker groups reset-offsets billing --all-topics --to-time 15m --execute",
            "Reset all topics of the group to 15 minutes ago",
        ),
        (
            "kbroker groups reset-offsets billing --topic orders --shift-by -10 --execute",
            "Move back ten offsets in each partition",
        ),
    ],
)
@click.argument("group", shell_complete=complete_group)
@_topic_option
@click.option("--all-topics", is_flag=True, help="All topics that the group has committed offsets for.")
@click.option(
    "--to", "to", metavar="OFFSET", callback=_check_reset_to, help="New offset: earliest, latest, or a number."
)
@click.option(
    "--to-time",
    "to_ms",
    metavar="TIME",
    callback=parse_timestamp_option,
    help="First offset at or after a timestamp: ISO 8601, milliseconds since 1970, or an age like 15m.",
)
@click.option("--shift-by", type=int, metavar="N", help="Move forward N offsets, or back if N is negative.")
@click.option(
    "--from-file",
    "file",
    type=click.File("r", encoding="utf-8"),
    help="File written by export-offsets or by kafka-consumer-groups --export.",
)
@_execute_option
@json_option
@bootstrap_option
def reset_offsets(
    group: str,
    topics: Sequence[tuple[str, list[int]]],
    all_topics: bool,
    to: str | None,
    to_ms: int | None,
    shift_by: int | None,
    file: IO[str] | None,
    execute: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Reset the committed offsets of a group.

    Prints the new offsets; use --execute to apply them. The group must have no active members.
    """
    if sum(option is not None for option in (to, to_ms, shift_by, file)) != 1:
        raise click.UsageError("Use exactly one of --to, --to-time, --shift-by and --from-file")
    if bool(topics) == all_topics and (file is None or all_topics):
        raise click.UsageError("Use either --topic or --all-topics")
    target = _target(group, to, to_ms, shift_by, file)
    _change_offsets(bootstrap, group, target, topics, execute=execute, as_json=as_json)


def _target(group: str, to: str | None, to_ms: int | None, shift_by: int | None, file: IO[str] | None) -> ResetTarget:
    from kbroker.cli.offset_plan import ResetTarget, TargetKind

    if file is not None:
        return _read_target(group, file)
    if to_ms is not None:
        return ResetTarget(TargetKind.TIMESTAMP, to_ms)
    if shift_by is not None:
        return ResetTarget(TargetKind.SHIFT, shift_by)
    assert to is not None
    return ResetTarget(TargetKind.OFFSET, int(to)) if to.isdigit() else ResetTarget(TargetKind[to.upper()])


def _read_target(group: str, file: IO[str]) -> ResetTarget:
    from kbroker.cli.offset_files import read_offsets
    from kbroker.cli.offset_plan import ResetTarget, TargetKind

    try:
        text = file.read()
    except UnicodeDecodeError:
        raise UserError("The file is not a text file in UTF-8") from None
    return ResetTarget(TargetKind.FROM_FILE, offsets=read_offsets(text, group))


def _change_offsets(
    bootstrap: str,
    group: str,
    target: ResetTarget,
    topics: Sequence[tuple[str, list[int]]],
    *,
    execute: bool,
    as_json: bool,
) -> None:
    """Prints the planned changes; commits them with `execute`."""
    from kbroker.cli.offset_plan import TopicSelection, new_offsets, plan_changes, require_no_members

    selections = [TopicSelection(name, tuple(numbers)) for name, numbers in topics]

    async def call(cluster: Cluster) -> list[OffsetChange]:
        from kbroker.client.offsets import commit_group_offsets

        await require_no_members(cluster, group)
        changes = await plan_changes(cluster, group, target, selections)
        if execute:
            await commit_group_offsets(cluster, group, new_offsets(changes))
        return changes

    changes = run_with_cluster(bootstrap, call)
    for change in changes:
        if change.requested != change.new.offset:
            click.echo(
                f"Offset {change.requested} is out of range for {change.topic}-{change.partition}; "
                f"using {change.new.offset}.",
                err=True,
            )
    columns = ("topic", "partition", "current", "new", "log end", "lag")
    rows = [
        (change.topic, change.partition, change.current, change.new.offset, change.log_end_offset, change.lag)
        for change in changes
    ]
    if as_json:
        names = [name.replace(" ", "_") for name in columns]
        offsets = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"group": group, "executed": execute, "offsets": offsets})
        return
    print_table(columns, rows)
    if execute:
        click.echo(f"Reset offsets of group {group}.")
    else:
        click.echo("Dry run: nothing was changed. Add --execute to apply.", err=True)


@click.command(
    "export-offsets",
    cls=Command,
    examples=[
        (
            "kbroker groups export-offsets billing > billing.csv",
            "Write topic, partition, offset and metadata as CSV with a header",
        ),
        (
            "kbroker groups export-offsets billing --format kafka > billing.csv",
            "Write a file for kafka-consumer-groups --reset-offsets --from-file",
        ),
        (
            "kbroker groups export-offsets billing --topic orders:0,1 --format json",
            "Print the offsets of two partitions as JSON",
        ),
    ],
)
@click.argument("group", shell_complete=complete_group)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "json", "kafka"]),
    default="csv",
    show_default=True,
    help="Output format; kafka is the CSV of kafka-consumer-groups, without a header.",
)
@_topic_option
@bootstrap_option
def export_offsets(group: str, file_format: str, topics: Sequence[tuple[str, list[int]]], bootstrap: str) -> None:
    """Print the committed offsets of a group.

    The output can be read by import-offsets; with --format kafka also by kafka-consumer-groups.
    """
    selected = dict(topics)

    async def call(cluster: Cluster) -> str:
        from kbroker.cli.offset_files import write_offsets
        from kbroker.client.admin.groups import describe_group
        from kbroker.client.offsets import group_offsets

        offsets = await group_offsets(cluster, group)
        if not offsets:
            # Raises NoSuchGroup if there is no such group: OffsetFetch answers without an error then.
            await describe_group(cluster, group)
        kept = {
            name: {
                number: offset
                for number, offset in partitions.items()
                if not selected.get(name) or number in selected[name]
            }
            for name, partitions in offsets.items()
            if not selected or name in selected
        }
        return write_offsets(file_format, group, kept)

    click.echo(run_with_cluster(bootstrap, call), nl=False)


@click.command(
    "import-offsets",
    cls=Command,
    examples=[
        ("kbroker groups import-offsets billing billing.csv", "Preview an import"),
        ("kbroker groups import-offsets billing billing.csv --execute", "Commit the offsets in the file"),
    ],
)
@click.argument("group", shell_complete=complete_group)
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@_topic_option
@_execute_option
@json_option
@bootstrap_option
def import_offsets(
    group: str,
    file: IO[str],
    topics: Sequence[tuple[str, list[int]]],
    execute: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Commit the offsets in a file for a group.

    Prints the new offsets; use --execute to apply them. The group must have no active members. Reads all formats of
    export-offsets and of kafka-consumer-groups --export.
    """
    _change_offsets(bootstrap, group, _read_target(group, file), topics, execute=execute, as_json=as_json)


@click.command(
    "delete-offsets",
    cls=Command,
    examples=[
        (
            "kbroker groups delete-offsets billing --topic orders",
            "Forget a topic that the group does not read any more",
        ),
        ("kbroker groups delete-offsets billing --topic orders:0,2 --yes", "Delete the offsets of two partitions"),
    ],
)
@click.argument("group", shell_complete=complete_group)
@_topic_option
@yes_option
@json_option
@bootstrap_option
def delete_offsets(
    group: str, topics: Sequence[tuple[str, list[int]]], yes: bool, as_json: bool, bootstrap: str
) -> None:
    """Delete committed offsets of a group.

    No active member of the group may be subscribed to the topic.
    """
    if not topics:
        raise click.UsageError("Use --topic")
    names = ", ".join(name for name, _ in topics)
    confirm(f"Delete the offsets of group {group} for {names}?", yes=yes)

    async def call(cluster: Cluster) -> list[tuple[str, int, str]]:
        from kbroker.client.offsets import delete_offsets as send_deletion

        rows = []
        for name, numbers in topics:
            topic = await cluster.topic(name)
            wanted = [topic.partition(number).number for number in numbers] or range(len(topic.partitions))
            codes = await send_deletion(cluster, group=group, topic=name, partitions=wanted)
            rows += [(name, number, code.name) for number, code in sorted(codes.items())]
        return rows

    rows = run_with_cluster(bootstrap, call)
    failed = [row for row in rows if row[2] != "NONE"]
    if as_json:
        results = ({"topic": name, "partition": number, "error": code} for name, number, code in rows)
        print_json([{**row, "error": None if row["error"] == "NONE" else row["error"]} for row in results])
    elif not failed:
        click.echo(f"Deleted offsets of group {group} for {pluralize(len(rows), 'partition')}.")
    if failed:
        name, number, code = failed[0]
        raise UserError(f"Could not delete the offset of {name}-{number}: {code}")
