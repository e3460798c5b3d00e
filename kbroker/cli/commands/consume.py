"""`kbroker consume`: prints the records of a topic, up to its current end or continuously."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kbroker.cli.command import Command, Function, bootstrap_option, partition_option
from kbroker.cli.name_completion import complete_group, complete_topic
from kbroker.cli.output import escape_control_characters, is_terminal, output_has_reader, progress
from kbroker.cli.record_text import (
    DECODERS,
    NULL,
    Decoders,
    Part,
    UndecodableRecord,
    compile_template,
    record_to_json,
    unescape,
)
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import since_option, until_option
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.consuming import Consumer, FetchedPartition

__all__ = ["command"]

COMMIT_SECONDS: Final = 5.0
_UNLIMITED: Final = 1 << 62
_PROGRESS_MIN_RECORDS: Final = 50_000
_SHOWN_PARTITIONS: Final = 3


class ConsumeOptions(NamedTuple):
    topic: str
    partitions: Sequence[int]
    offset: str | None
    since_ms: int | None
    until_ms: int | None
    limit: int | None
    follow: bool
    read_committed: bool
    group: str | None


def _check_offset(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and text not in ("earliest", "latest") and not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise click.BadParameter(f"Expected earliest, latest, an offset, or -N for the last N, got '{text}'")
    return text


def _decoder_option(part: str) -> Callable[[Function], Function]:
    return click.option(
        f"--{part}-decoder",
        type=click.Choice(list(DECODERS)),
        default="text",
        show_default=True,
        help=f"Format of the {part}s. Numbers are big-endian, as Kafka's serializers write them.",
    )


def _parse_template(_ctx: click.Context, _option: click.Parameter, text: str) -> Part:
    try:
        return compile_template(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


@click.command(
    "consume",
    cls=Command,
    examples=[
        ("kbroker consume orders", "Print all values up to the current end"),
        ("kbroker consume orders --follow --offset latest", "Print new records until Ctrl-C"),
        (
            r"kbroker consume orders --offset -10 --format '{partition}:{offset}\t{key}\t{value}'",
            "Print the last ten records of each partition with key and offset",
        ),
        ("kbroker consume orders --since 15m --json", "Print the records of the last 15 minutes as JSON lines"),
        (
            "kbroker consume orders --since 2026-01-31 --until 2026-02-01 --key-separator ': '",
            "Print the records of one day (UTC) with their keys",
        ),
        ("kbroker consume counts --value-decoder int64 --max 10", "Print ten values that are 64-bit integers"),
        ("kbroker consume orders --group billing", "Continue from the committed offsets of a group, and commit"),
    ],
)
@click.argument("topic", shell_complete=complete_topic)
@partition_option("Read only this partition. Repeatable.")
@click.option(
    "--offset",
    metavar="OFFSET",
    callback=_check_offset,
    help="Start offset: earliest, latest, a number, or -N for the last N records. [default: earliest]",
)
@since_option
@until_option
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="Exit after N records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records until Ctrl-C.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    default="{value}",
    show_default=True,
    callback=_parse_template,
    help=r"Output format: {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}, \t and \n.",
)
@click.option("--key-separator", metavar="TEXT", help=r"Print key, TEXT and value: short for --format. \t is a tab.")
@click.option(
    "--delimiter",
    metavar="TEXT",
    default="\\n",
    show_default=True,
    help=r"Text after each record. \0 is a zero byte, for xargs -0.",
)
@_decoder_option("key")
@_decoder_option("value")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record.")
@click.option("--read-committed", is_flag=True, help="Skip records of open and aborted transactions.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_group,
    help="Start at the committed offsets of this group, and commit. Reads all partitions; does not join the group.",
)
@bootstrap_option
def command(
    topic: str,
    partitions: Sequence[int],
    offset: str | None,
    since_ms: int | None,
    until_ms: int | None,
    limit: int | None,
    follow: bool,
    template: Part,
    key_separator: str | None,
    delimiter: str,
    key_decoder: str,
    value_decoder: str,
    as_json: bool,
    read_committed: bool,
    group: str | None,
    bootstrap: str,
) -> None:
    """Read records from a topic.

    Stops at the current end of each partition; with --follow, waits for new records.
    """
    if offset is not None and since_ms is not None:
        raise click.UsageError("Use either --offset or --since, not both")
    if follow and until_ms is not None:
        raise click.UsageError("Use either --follow or --until, not both")
    if key_separator is not None:
        separator = unescape(key_separator)
        template = lambda _topic, _partition, record: separator.join(  # noqa: E731
            NULL if part is None else part for part in (record.key, record.value)
        )
    decoders = Decoders(key_decoder, value_decoder)
    options = ConsumeOptions(topic, partitions, offset, since_ms, until_ms, limit, follow, read_committed, group)
    write = _writer(_json_line(decoders) if as_json else _text_line(template, decoders, unescape(delimiter)))

    async def call(cluster: Cluster) -> None:
        await _ConsumeLoop(cluster, options, write).run()

    run_with_cluster(bootstrap, call)


def _json_line(decoders: Decoders) -> Part:
    def line_of(topic: str, partition: int, record: Any) -> bytes:
        line = json.dumps(record_to_json(topic, partition, record, decoders), ensure_ascii=False)
        return line.encode("utf-8", "surrogatepass") + b"\n"

    return line_of


def _text_line(template: Part, decoders: Decoders, delimiter: bytes) -> Part:
    return lambda topic, partition, record: template(topic, partition, decoders.as_text(record)) + delimiter


def _writer(line_of: Part) -> Callable[[str, int, Sequence[Any]], None]:
    """Returns a function that writes records to stdout: raw bytes, or with control characters escaped on a terminal."""
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()

    def write(topic: str, partition: int, records: Sequence[Any]) -> None:
        for record in records:
            try:
                line = line_of(topic, partition, record)
            except UndecodableRecord as problem:
                out.flush()
                raise UserError(f"{topic}-{partition}, {problem}") from None
            if is_terminal:
                line = escape_control_characters(line.decode("utf-8", "backslashreplace")).encode(
                    "utf-8", "backslashreplace"
                )
            out.write(line)
        out.flush()

    return write


class _ConsumeLoop:
    """Reads from the start offsets to the end offsets, and commits the group's progress."""

    def __init__(
        self, cluster: Cluster, options: ConsumeOptions, write: Callable[[str, int, Sequence[Any]], None]
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._write = write
        self._remaining = _UNLIMITED if options.limit is None else options.limit
        self._ends: Mapping[int, int] = {}
        self._consumed: dict[int, int] = {}
        """Offsets to commit: partition -> next offset."""
        self._next_commit = 0.0

    async def run(self) -> None:
        import trio

        from kbroker.client.consuming import Consumer

        options = self._options
        starts = await self._find_range()
        consumer = Consumer(self._cluster, options.topic, starts, read_committed=options.read_committed)
        self._drop_finished(consumer.positions)
        self._next_commit = trio.current_time() + COMMIT_SECONDS
        try:
            with self._progress(starts) as bar:
                while consumer.positions and self._remaining:
                    for fetched in await self._poll(consumer):
                        self._write_fetched(fetched)
                        if bar is not None:
                            bar.update(len(fetched.records))
                    self._drop_finished(consumer.positions)
                    if options.follow and not output_has_reader():
                        raise BrokenPipeError
                    if trio.current_time() >= self._next_commit:
                        await self._commit()
                        self._next_commit = trio.current_time() + COMMIT_SECONDS
        finally:
            # Shielded: after Ctrl-C the records already printed must still be committed.
            with trio.move_on_after(COMMIT_SECONDS, shield=True):
                await self._commit()

    async def _poll(self, consumer: Consumer) -> list[FetchedPartition]:
        from kbroker.client.failures import BrokerRefusal
        from kbroker.protocol.error_codes import ErrorCode

        try:
            return await consumer.poll()
        except BrokerRefusal as refusal:
            if refusal.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            topic = self._options.topic
            raise UserError(f"Offset out of range. Run 'kbroker offsets {topic}' to see the valid range.") from None

    def _progress(self, starts: Mapping[int, int]) -> AbstractContextManager[Any]:
        """Returns a progress bar if stdout is not a terminal; on a terminal the records themselves show progress."""
        length = sum(max(self._ends[number] - start, 0) for number, start in starts.items())
        is_shown = not self._options.follow and not is_terminal()
        return progress(
            min(length, self._remaining) if is_shown else None, "Reading", worth_showing=_PROGRESS_MIN_RECORDS
        )

    def _write_fetched(self, fetched: FetchedPartition) -> None:
        end = self._ends[fetched.partition]
        records = fetched.records
        if records and records[-1].offset >= end:
            records = [record for record in records if record.offset < end]
        if len(records) > self._remaining:
            records = records[: self._remaining]
            next_offset = records[-1].offset + 1 if records else None
        else:
            next_offset = min(fetched.next_offset, end)
        self._write(self._options.topic, fetched.partition, records)
        self._remaining -= len(records)
        if next_offset is not None:
            self._consumed[fetched.partition] = next_offset

    def _drop_finished(self, positions: dict[int, int]) -> None:
        for number in [number for number, position in positions.items() if position >= self._ends[number]]:
            del positions[number]

    async def _commit(self) -> None:
        from kbroker.client.offsets import commit_offsets

        if self._options.group is not None and self._consumed:
            offsets, self._consumed = self._consumed, {}
            await commit_offsets(self._cluster, group=self._options.group, topic=self._options.topic, offsets=offsets)

    async def _find_range(self) -> dict[int, int]:
        """Sets the end offsets and returns the start offset of each partition."""
        from kbroker.cli.record_range import find_range
        from kbroker.client.offsets import committed_offsets

        options = self._options
        starts, ends, earliest, latest = await find_range(
            self._cluster,
            options.topic,
            options.partitions,
            offset=options.offset,
            since_ms=options.since_ms,
            until_ms=options.until_ms,
            read_committed=options.read_committed,
        )
        self._ends = dict.fromkeys(starts, _UNLIMITED) if options.follow else ends
        if options.group is not None:
            committed = await committed_offsets(
                self._cluster, group=options.group, topic=options.topic, partitions=starts
            )
            starts = {number: max(committed.get(number, start), earliest[number]) for number, start in starts.items()}
        if not options.follow:  # brokers refuse to wait there
            _warn_beyond_end(options.topic, starts, latest)
        return starts


def _warn_beyond_end(topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Warns about partitions of which nothing is read because they end before the start offset."""
    beyond = [number for number, start in starts.items() if start > ends[number]]
    if beyond:
        shown = [f"{topic}-{number} ends at {ends[number]}" for number in beyond[:_SHOWN_PARTITIONS]]
        others = len(beyond) - len(shown)
        click.echo(
            f"kbroker: warning: offset {max(starts[number] for number in beyond)} is beyond the end: "
            f"{', '.join(shown)}{f', and {others} others' if others else ''}",
            err=True,
        )
