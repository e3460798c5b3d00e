"""`kbroker groups reset-offsets`, `export-offsets`, `import-offsets`: what groups have committed, moved and copied."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, bootstrap_option, json_option
from kbroker.cli.moments import moment
from kbroker.cli.output import print_json, print_table
from kbroker.errors import UserError
from kbroker.names import topic_name_problem

if TYPE_CHECKING:
    from kbroker.cli.offset_plan import Change, Target
    from kbroker.client.cluster import Cluster

__all__ = ["export_offsets", "import_offsets", "reset_offsets"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _topic_choices(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """`orders` or `orders:0,1`; a topic's name has no colon in it."""
    choices = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
        if colon and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers):
            raise click.BadParameter(f"'{text}' is not TOPIC or TOPIC:0,1")
        choices.append((name, [int(each) for each in numbers.split(",")] if colon else []))
    return choices


def _topic_option(function: Function) -> Function:
    return click.option(
        "--topic",
        "topics",
        metavar="TOPIC[:0,1]",
        multiple=True,
        callback=_topic_choices,
        help="Only this topic, or these partitions of it. Repeatable.",
    )(function)


def _execute_option(function: Function) -> Function:
    return click.option("--execute", is_flag=True, help="Do it; without this, only show what would be done.")(function)


def _destination(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and text not in ("earliest", "latest") and not re.fullmatch(r"[0-9]{1,18}", text):
        raise click.BadParameter(f"'{text}' is not earliest, latest or an offset")
    return text


@click.command(
    "reset-offsets",
    cls=Command,
    examples=[
        ("kbroker groups reset-offsets billing --topic orders --to earliest", "what would change, and nothing is done"),
        ("kbroker groups reset-offsets billing --topic orders --to earliest --execute", "read all of orders again"),
        (
            "kbroker groups reset-offsets billing --topic orders:0,2 --to-time 2026-01-31T12:00 --execute",
            "two partitions, from noon on, UTC",
        ),
        ("kbroker groups reset-offsets billing --all-topics --to-time 15m --execute", "the last 15 minutes again"),
        ("kbroker groups reset-offsets billing --topic orders --shift-by -10 --execute", "ten back in each partition"),
    ],
)
@click.argument("group")
@_topic_option
@click.option("--all-topics", is_flag=True, help="Every topic that the group has offsets for.")
@click.option("--to", "to", metavar="WHERE", callback=_destination, help="earliest, latest, or an offset.")
@click.option(
    "--to-time",
    "to_ms",
    metavar="TIME",
    callback=moment,
    help="The first record at or after a moment: ISO 8601, milliseconds, or 15m ago.",
)
@click.option("--shift-by", type=int, metavar="N", help="So many offsets on, or back if negative.")
@click.option(
    "--from-file",
    "file",
    type=click.File("r", encoding="utf-8"),
    help="What export-offsets, or kafka-consumer-groups --export, has written.",
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
    """Move a group to other offsets; a dry run unless --execute is given. The group must have no members."""
    if sum(each is not None for each in (to, to_ms, shift_by, file)) != 1:
        raise click.UsageError("say where to, once: --to, --to-time, --shift-by or --from-file")
    if bool(topics) == all_topics and (file is None or all_topics):
        raise click.UsageError("say which topics: --topic, or --all-topics")
    target = _target(group, to, to_ms, shift_by, file)
    _change_offsets(bootstrap, group, target, topics, execute=execute, as_json=as_json)


def _target(group: str, to: str | None, to_ms: int | None, shift_by: int | None, file: IO[str] | None) -> Target:
    from kbroker.cli.offset_plan import Kind, Target

    if file is not None:
        return _target_of_file(group, file)
    if to_ms is not None:
        return Target(Kind.MOMENT, to_ms)
    if shift_by is not None:
        return Target(Kind.SHIFT, shift_by)
    assert to is not None
    return Target(Kind.OFFSET, int(to)) if to.isdigit() else Target(Kind[to.upper()])


def _target_of_file(group: str, file: IO[str]) -> Target:
    from kbroker.cli.offset_files import read_offsets
    from kbroker.cli.offset_plan import Kind, Target

    try:
        text = file.read()
    except UnicodeDecodeError:
        raise UserError("the file is not text in UTF-8") from None
    return Target(Kind.GIVEN, given=read_offsets(text, group))


def _change_offsets(
    bootstrap: str,
    group: str,
    target: Target,
    topics: Sequence[tuple[str, list[int]]],
    *,
    execute: bool,
    as_json: bool,
) -> None:
    """Shows the plan, and commits it if that is wanted."""
    from kbroker.cli.offset_plan import TopicChoice, offsets_of, plan_changes, refuse_members

    choices = [TopicChoice(name, tuple(numbers)) for name, numbers in topics]

    async def call(cluster: Cluster) -> list[Change]:
        from kbroker.client.offsets import commit_group_offsets

        await refuse_members(cluster, group)
        changes = await plan_changes(cluster, group, target, choices)
        if execute:
            await commit_group_offsets(cluster, group, offsets_of(changes))
        return changes

    changes = call_cluster(bootstrap, call)
    for each in changes:
        if each.wanted != each.new.offset:
            click.echo(
                f"{each.topic} {each.partition}: {each.wanted} lies outside its log, {each.new.offset} is the nearest",
                err=True,
            )
    columns = ("topic", "partition", "current", "new", "log end", "lag")
    rows = [
        (each.topic, each.partition, each.current, each.new.offset, each.log_end_offset, each.lag) for each in changes
    ]
    if as_json:
        names = [name.replace(" ", "_") for name in columns]
        offsets = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"group": group, "executed": execute, "offsets": offsets})
        return
    print_table(columns, rows)
    done = f"group {group} moved" if execute else "dry run, nothing was changed: add --execute to do it"
    click.echo(done, err=not execute)


@click.command(
    "export-offsets",
    cls=Command,
    examples=[
        (
            "kbroker groups export-offsets billing > billing.csv",
            "topic, partition, offset and metadata, with a heading",
        ),
        (
            "kbroker groups export-offsets billing --format kafka > billing.csv",
            "for kafka-consumer-groups --reset-offsets --from-file",
        ),
        ("kbroker groups export-offsets billing --topic orders:0,1 --format json", "two partitions, as JSON"),
    ],
)
@click.argument("group")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "json", "kafka"]),
    default="csv",
    show_default=True,
    help="csv has a heading, kafka is the CSV of Kafka's own tool.",
)
@_topic_option
@bootstrap_option
def export_offsets(group: str, file_format: str, topics: Sequence[tuple[str, list[int]]], bootstrap: str) -> None:
    """Print the offsets of a group, for import-offsets or for Kafka's own tool."""
    chosen = dict(topics)

    async def call(cluster: Cluster) -> str:
        from kbroker.cli.offset_files import write_offsets
        from kbroker.client.groups import describe_group
        from kbroker.client.offsets import group_offsets

        offsets = await group_offsets(cluster, group)
        if not offsets:
            await describe_group(cluster, group)
        kept = {
            name: {
                number: each for number, each in partitions.items() if not chosen.get(name) or number in chosen[name]
            }
            for name, partitions in offsets.items()
            if not chosen or name in chosen
        }
        return write_offsets(file_format, group, kept)

    click.echo(call_cluster(bootstrap, call), nl=False)


@click.command(
    "import-offsets",
    cls=Command,
    examples=[
        ("kbroker groups import-offsets billing billing.csv", "what would change, and nothing is done"),
        ("kbroker groups import-offsets billing billing.csv --execute", "the group goes on from there"),
    ],
)
@click.argument("group")
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
    """Give a group the offsets in a file; a dry run unless --execute is given. The group must have no members.

    Reads every form that export-offsets writes, and that kafka-consumer-groups --export writes.
    """
    _change_offsets(bootstrap, group, _target_of_file(group, file), topics, execute=execute, as_json=as_json)
