"""`kbroker produce`: lines or JSON objects from stdin or a file become records of a topic."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, bootstrap_option, json_option, key_values
from kbroker.cli.output import counted, print_json, progress
from kbroker.cli.record_text import BadLine, Line, line_from_json, line_from_text
from kbroker.clock import SystemClock
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.producing import Producer

__all__ = ["command"]

ACKS: Final = {"all": -1, "1": 1, "0": 0}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_READ_SIZE: Final = 256 * 1024
_FLUSHES_PER_SECOND: Final = 10


@click.command(
    "produce",
    cls=Command,
    examples=[
        ("echo hello | kbroker produce greetings", "one line, one record"),
        ("kbroker produce orders orders.txt --key-separator :", "lines of a file, each a key, a colon and a value"),
        ("kbroker produce orders --header source=shop --rate 10", "typed in; a header on each; ten a second at most"),
        (
            "kbroker consume orders --json | kbroker produce copy --format json",
            "a copy of a topic, keys and headers too",
        ),
    ],
)
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key-separator", metavar="TEXT", help="What stands between key and value in each line.")
@click.option("--key", metavar="TEXT", help="The key of every record.")
@click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, callback=key_values, help="On every record.")
@click.option(
    "--partition", type=click.IntRange(0), metavar="N", help="Where all records go. [default: by key, else in turn]"
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What a line is.",
)
@click.option("--null", metavar="TEXT", help="A value or key that is this text is null: a tombstone.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Records a second, at most.")
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Who must have it.")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Of each batch.")
@json_option
@bootstrap_option
def command(
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    key: str | None,
    headers: Mapping[str, str],
    partition: int | None,
    line_format: str,
    null: str | None,
    rate: float | None,
    acks: str,
    compression: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    r"""Write records to a topic, one for each line of FILE or stdin.

    With --format json each line is an object with "key", "value", "headers", "partition" and "timestamp", all of which
    may be missing.
    """
    if line_format == "json" and (key_separator is not None or null is not None):
        raise click.UsageError("--key-separator and --null are for --format text")
    if key is not None and key_separator is not None:
        raise click.UsageError("give --key or --key-separator, not both")
    if key_separator == "":
        raise click.UsageError("--key-separator cannot be empty")
    given = Line(
        None if key is None else os.fsencode(key),
        None,
        tuple((name, os.fsencode(value)) for name, value in headers.items()),
        partition,
    )
    separator = None if key_separator is None else os.fsencode(key_separator)
    null_bytes = None if null is None else os.fsencode(null)

    def parse(text: bytes) -> Line:
        if line_format == "json":
            return _merged(line_from_json(text), given)
        return _merged(line_from_text(text, key_separator=separator, null=null_bytes), given)

    async def call(cluster: Cluster) -> dict[int, int]:
        from kbroker.client.producing import Producer

        producer = Producer(cluster, topic, acks=ACKS[acks], codec=CODECS.index(compression))
        await producer.start()
        writing = _Writing(producer, _Lines(file, parse), rate)
        try:
            await writing.run()
        except BadLine as problem:
            await writing.flush()
            raise UserError(
                f"{getattr(file, 'name', '<stdin>')}, line {writing.lines.number}: {problem}; all before it is written"
            ) from None
        return writing.counts

    if file.isatty():
        click.echo(f"each line is a record for {topic}; ctrl-D ends", err=True)
    counts = call_cluster(bootstrap, call)
    total = sum(counts.values())
    if as_json:
        print_json({"topic": topic, "records": total, "partitions": {str(index): counts[index] for index in counts}})
    else:
        click.echo(f"{counted(total, 'record')} written to {topic}")


def _merged(line: Line, given: Line) -> Line:
    """What the line says wins over what the options say; their headers come first."""
    return line._replace(
        key=given.key if line.key is None else line.key,
        headers=given.headers + line.headers,
        partition=given.partition if line.partition is None else line.partition,
    )


class _Lines:
    """The lines of a file, as far as it has them now; the last one may lack its end."""

    def __init__(self, file: BinaryIO, parse: Any) -> None:
        self.number = 0
        self._file = file
        self._parse = parse
        self._rest = b""

    def read(self) -> bytes:
        """Blocks until there is something; empty at the end."""
        data: bytes = self._file.read1(_READ_SIZE)  # type: ignore[attr-defined] # every file opened "rb" has it
        return data

    def split(self, data: bytes) -> Iterator[Line]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines, self._rest = [self._rest], b""
        for line in lines:
            self.number += 1
            yield self._parse(line.removesuffix(b"\r"))

    @property
    def size(self) -> int | None:
        """Of a plain file; nobody knows how long a pipe is."""
        try:
            status = os.fstat(self._file.fileno())
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None


class _Writing:
    def __init__(self, producer: Producer, lines: _Lines, rate: float | None) -> None:
        self.lines = lines
        self.counts: dict[int, int] = {}
        self._producer = producer
        self._rate = rate
        self._clock = SystemClock()
        self._added = 0

    async def run(self) -> None:
        """Whatever one read brings is sent before the next one: what is typed arrives at once."""
        import trio

        start = trio.current_time()
        burst = None if self._rate is None else max(1, int(self._rate / _FLUSHES_PER_SECOND))
        with progress(self.lines.size, "writing", worth_showing=_READ_SIZE) as bar:
            while True:
                data = await trio.to_thread.run_sync(self.lines.read, abandon_on_cancel=True)
                for line in self.lines.split(data):
                    if self._add(line):
                        await self.flush()
                    self._added += 1
                    if burst is not None and self._rate is not None and self._added % burst == 0:
                        await self.flush()
                        await trio.sleep_until(start + self._added / self._rate)
                await self.flush()
                if not data:
                    return
                if bar is not None:
                    bar.update(len(data))

    def _add(self, line: Line) -> bool:
        timestamp_ms = self._clock.now_ms() if line.timestamp_ms is None else line.timestamp_ms
        return self._producer.add(
            line.value, key=line.key, headers=line.headers, partition=line.partition, timestamp_ms=timestamp_ms
        )

    async def flush(self) -> None:
        for sent in await self._producer.flush():
            self.counts[sent.partition] = self.counts.get(sent.partition, 0) + sent.record_count
