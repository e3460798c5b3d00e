"""`kbroker consume`: the records of a topic as lines, to its present end or for as long as it grows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, bootstrap_option
from kbroker.cli.moments import moment
from kbroker.cli.output import is_terminal, progress, tame
from kbroker.cli.record_text import json_of_record, template_of
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.consuming import Consumer, FetchedPartition

__all__ = ["command"]

COMMIT_SECONDS: Final = 5.0
_NEVER: Final = 1 << 62
_MANY_RECORDS: Final = 50_000


class Options(NamedTuple):
    topic: str
    partitions: Sequence[int]
    offset: str | None
    since_ms: int | None
    limit: int | None
    follow: bool
    read_committed: bool
    group: str | None


def _offset(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and text not in ("earliest", "latest") and not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise click.BadParameter(f"'{text}' is not earliest, latest, a number, or -N for the last N")
    return text


def _template(_ctx: click.Context, _option: click.Parameter, text: str) -> Callable[[str, int, Any], bytes]:
    try:
        return template_of(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


@click.command(
    "consume",
    cls=Command,
    examples=[
        ("kbroker consume orders", "every value from the start to the present end"),
        ("kbroker consume orders --follow --offset latest", "what comes from now on, until ctrl-C"),
        (
            r"kbroker consume orders --offset -10 --format '{partition}:{offset}\t{key}\t{value}'",
            "the last ten of each partition",
        ),
        ("kbroker consume orders --since 15m --json", "the last 15 minutes, an object on each line"),
        ("kbroker consume orders --group billing", "what the group has not seen yet; remembers how far it came"),
    ],
)
@click.argument("topic")
@click.option(
    "--partition", "partitions", type=click.IntRange(0), metavar="N", multiple=True, help="Only this one. Repeatable."
)
@click.option(
    "--offset",
    metavar="WHERE",
    callback=_offset,
    help="Where to begin: earliest, latest, an offset, or -N for the last N. [default: earliest]",
)
@click.option("--since", "since_ms", metavar="TIME", callback=moment, help="Begin at a moment: ISO 8601, or 15m ago.")
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end, until ctrl-C.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    default="{value}",
    show_default=True,
    callback=_template,
    help=r"A line for each record: {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}, \t and \n.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on each line, for programs.")
@click.option("--read-committed", is_flag=True, help="Leave out what open and aborted transactions wrote.")
@click.option(
    "--group",
    metavar="NAME",
    help="Begin where this group stopped, and commit. Reads all partitions: it joins no rebalance.",
)
@bootstrap_option
def command(
    topic: str,
    partitions: Sequence[int],
    offset: str | None,
    since_ms: int | None,
    limit: int | None,
    follow: bool,
    template: Callable[[str, int, Any], bytes],
    as_json: bool,
    read_committed: bool,
    group: str | None,
    bootstrap: str,
) -> None:
    """Read the records of a topic, to its present end or, with --follow, for as long as it grows."""
    if offset is not None and since_ms is not None:
        raise click.UsageError("give --offset or --since, not both")
    options = Options(topic, partitions, offset, since_ms, limit, follow, read_committed, group)
    write = _writer(_json_line if as_json else lambda *record: template(*record) + b"\n")

    async def call(cluster: Cluster) -> None:
        await _Reading(cluster, options, write).run()

    call_cluster(bootstrap, call)


def _json_line(topic: str, partition: int, record: Any) -> bytes:
    line = json.dumps(json_of_record(topic, partition, record), ensure_ascii=False)
    return line.encode("utf-8", "surrogatepass") + b"\n"


def _writer(line_of: Callable[[str, int, Any], bytes]) -> Callable[[str, int, Sequence[Any]], None]:
    """Bytes as they are, but on a terminal: there a record must not move the cursor or change the colours."""
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()

    def write(topic: str, partition: int, records: Sequence[Any]) -> None:
        for record in records:
            line = line_of(topic, partition, record)
            if is_terminal:
                line = tame(line.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")
            out.write(line)
        out.flush()

    return write


class _Reading:
    """From the first offset to the last, and what the group is told on the way."""

    def __init__(self, cluster: Cluster, options: Options, write: Callable[[str, int, Sequence[Any]], None]) -> None:
        self._cluster = cluster
        self._options = options
        self._write = write
        self._left = _NEVER if options.limit is None else options.limit
        self._ends: Mapping[int, int] = {}
        self._consumed: dict[int, int] = {}
        """What the group has not been told yet: partition -> next offset."""
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
                while consumer.positions and self._left:
                    for fetched in await self._poll(consumer):
                        self._take(fetched)
                        if bar is not None:
                            bar.update(len(fetched.records))
                    self._drop_finished(consumer.positions)
                    if trio.current_time() >= self._next_commit:
                        await self._commit()
                        self._next_commit = trio.current_time() + COMMIT_SECONDS
        finally:
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
            raise UserError(f"{topic} has no such offset: 'kbroker offsets {topic}' shows which it has") from None

    def _progress(self, starts: Mapping[int, int]) -> AbstractContextManager[Any]:
        """While the records go into a file or a pipe; on a terminal they are what moves."""
        length = sum(max(self._ends[number] - start, 0) for number, start in starts.items())
        is_shown = not self._options.follow and not is_terminal()
        return progress(min(length, self._left) if is_shown else None, "reading", worth_showing=_MANY_RECORDS)

    def _take(self, fetched: FetchedPartition) -> None:
        end = self._ends[fetched.partition]
        records = fetched.records
        if records and records[-1].offset >= end:
            records = [each for each in records if each.offset < end]
        if len(records) > self._left:
            records = records[: self._left]
            next_offset = records[-1].offset + 1 if records else None
        else:
            next_offset = min(fetched.next_offset, end)
        self._write(self._options.topic, fetched.partition, records)
        self._left -= len(records)
        if next_offset is not None:
            self._consumed[fetched.partition] = next_offset

    def _drop_finished(self, positions: dict[int, int]) -> None:
        for number in [each for each, position in positions.items() if position >= self._ends[each]]:
            del positions[number]

    async def _commit(self) -> None:
        from kbroker.client.offsets import commit_offsets

        if self._options.group is not None and self._consumed:
            offsets, self._consumed = self._consumed, {}
            await commit_offsets(self._cluster, self._options.group, self._options.topic, offsets)

    async def _find_range(self) -> dict[int, int]:
        from kbroker.client.offsets import EARLIEST, LATEST, committed_offsets, list_offsets

        options = self._options
        topic = await self._cluster.topic(options.topic)
        numbers = [topic.partition(each).number for each in options.partitions] or [
            each.number for each in topic.partitions
        ]

        async def ask(timestamp: int) -> dict[int, int]:
            timestamps = dict.fromkeys(numbers, timestamp)
            found = await list_offsets(self._cluster, options.topic, timestamps, read_committed=options.read_committed)
            return {number: offset for number, (offset, _timestamp) in found.items()}

        earliest, latest = await ask(EARLIEST), await ask(LATEST)
        self._ends = dict.fromkeys(numbers, _NEVER) if options.follow else latest
        if options.since_ms is not None:
            found = await ask(options.since_ms)
            starts = {number: latest[number] if offset < 0 else offset for number, offset in found.items()}
        elif options.offset == "latest":
            starts = latest
        elif options.offset in (None, "earliest"):
            starts = earliest
        else:
            wanted = int(options.offset)
            starts = {
                number: max(latest[number] + wanted if wanted < 0 else wanted, earliest[number]) for number in numbers
            }
        if options.group is not None:
            known = await committed_offsets(self._cluster, options.group, options.topic, numbers)
            starts = {number: max(known.get(number, starts[number]), earliest[number]) for number in numbers}
        return dict(starts)
