"""`kbroker produce`: writes lines or JSON objects from stdin or a file to a topic."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from kbroker.cli.command import Command, bootstrap_option, check_topic_name, json_option, parse_pairs
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import pluralize, print_json, progress
from kbroker.cli.record_text import InputRecord, InvalidLine, parse_json_line, parse_text_line, unescape
from kbroker.cli.run_with_cluster import run_with_cluster
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
        ("echo hello | kbroker produce greetings", "Write one record"),
        ("kbroker produce orders orders.txt --key-separator :", "Write KEY:VALUE lines from a file"),
        (
            "kbroker produce orders --header source=shop --rate 10",
            "Write lines from stdin with a header, at most ten per second",
        ),
        (
            "kbroker consume orders --json | kbroker produce copy --format json",
            "Copy a topic with keys and headers",
        ),
    ],
)
@click.argument("topic", callback=check_topic_name, shell_complete=complete_topic)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key-separator", metavar="TEXT", help=r"Separator between key and value in each line. \t is a tab.")
@click.option(
    "--delimiter",
    metavar="TEXT",
    default="\\n",
    show_default=True,
    help=r"Separator of records in the input. \0 is a zero byte.",
)
@click.option("--key", metavar="TEXT", help="Key of every record.")
@click.option(
    "--header",
    "headers",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="Header to add to every record. Repeatable, also with the same key.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    metavar="N",
    help="Partition of every record. [default: by key; without a key, a random partition per batch]",
)
@click.option(
    "--format",
    "line_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Input format.",
)
@click.option("--null", metavar="TEXT", help="Text to write as a null key or value (tombstone).")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Maximum records per second.")
@click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Required acknowledgements."
)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Compression codec.")
@json_option
@bootstrap_option
def command(
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    delimiter: str,
    key: str | None,
    headers: Sequence[tuple[str, str]],
    partition: int | None,
    line_format: str,
    null: str | None,
    rate: float | None,
    acks: str,
    compression: str,
    as_json: bool,
    bootstrap: str,
) -> None:
    r"""Write records to a topic, one per line of FILE or stdin.

    With --format json, each line is an object with the optional fields "key", "value", "headers", "partition" and
    "timestamp" (milliseconds since 1970).
    """
    if line_format == "json" and (key_separator is not None or null is not None):
        raise click.UsageError("--key-separator and --null require --format text")
    if key is not None and key_separator is not None:
        raise click.UsageError("Use either --key or --key-separator, not both")
    if not delimiter or key_separator == "":
        raise click.UsageError("--key-separator and --delimiter must not be empty")
    defaults = InputRecord(
        None if key is None else os.fsencode(key),
        None,
        tuple((name, os.fsencode(value)) for name, value in headers),
        partition,
    )
    separator = None if key_separator is None else unescape(key_separator)
    null_bytes = None if null is None else os.fsencode(null)

    def parse(text: bytes) -> InputRecord:
        if line_format == "json":
            return _with_defaults(parse_json_line(text), defaults)
        return _with_defaults(parse_text_line(text, key_separator=separator, null=null_bytes), defaults)

    async def call(cluster: Cluster) -> dict[int, int]:
        from kbroker.client.failures import BrokerRefusal, ConnectionFailed
        from kbroker.client.producing import Producer

        producer = Producer(cluster, topic, acks=ACKS[acks], codec=CODECS.index(compression))
        await producer.start()
        loop = _ProduceLoop(producer, _Lines(file, parse, unescape(delimiter)), rate)
        try:
            await loop.run()
        except InvalidLine as problem:
            await loop.flush()
            raise UserError(
                f"{getattr(file, 'name', '<stdin>')}, line {loop.lines.number}: {problem}. "
                "All lines before it were written."
            ) from None
        except (BrokerRefusal, ConnectionFailed) as problem:
            written = pluralize(sum(producer.counts.values()), "record")
            raise UserError(f"{problem}. Wrote {written} to topic {topic} before this error.") from None
        return producer.counts

    if file.isatty():
        click.echo(f"Type one record per line for topic {topic}. End with Ctrl-D.", err=True)
    counts = run_with_cluster(bootstrap, call)
    total = sum(counts.values())
    if as_json:
        print_json({"topic": topic, "records": total, "partitions": {str(index): counts[index] for index in counts}})
    else:
        click.echo(f"Wrote {pluralize(total, 'record')} to topic {topic}.")


def _with_defaults(line: InputRecord, defaults: InputRecord) -> InputRecord:
    """Fills in key, headers and partition of the options. A line's key and partition win; headers are combined."""
    return line._replace(
        key=defaults.key if line.key is None else line.key,
        headers=defaults.headers + line.headers,
        partition=defaults.partition if line.partition is None else line.partition,
    )


class _Lines:
    """Splits a file into parsed lines as data arrives. The last line may lack its delimiter."""

    def __init__(self, file: BinaryIO, parse: Any, delimiter: bytes) -> None:
        self.number = 0
        self._file = file
        self._parse = parse
        self._delimiter = delimiter
        self._line_end = b"\r" if delimiter == b"\n" else b""
        self._rest = b""

    def read(self) -> bytes:
        """Blocks until data is available. Returns b"" at the end of the file.

        Reads below the buffer of the file: a thread that waits in the buffer holds its lock, and after Ctrl-C Python
        aborts the process, because it cannot close a locked stdin.
        """
        data: bytes = getattr(self._file, "raw", self._file).read(_READ_SIZE)
        return data

    def split(self, data: bytes) -> Iterator[InputRecord]:
        *lines, self._rest = (self._rest + data).split(self._delimiter)
        if not data and self._rest:
            lines, self._rest = [self._rest], b""
        for line in lines:
            self.number += 1
            yield self._parse(line.removesuffix(self._line_end))

    @property
    def size(self) -> int | None:
        """Returns the file size in bytes, or None if the input is not a regular file."""
        try:
            status = os.fstat(self._file.fileno())
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None


class _ProduceLoop:
    def __init__(self, producer: Producer, lines: _Lines, rate: float | None) -> None:
        self.lines = lines
        self._producer = producer
        self._rate = rate
        self._clock = SystemClock()
        self._added = 0

    async def run(self) -> None:
        """Sends the lines of each read before the next read, so that typed lines arrive at once."""
        import trio

        start = trio.current_time()
        burst = None if self._rate is None else max(1, int(self._rate / _FLUSHES_PER_SECOND))
        with progress(self.lines.size, "Writing", worth_showing=_READ_SIZE) as bar:
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

    def _add(self, line: InputRecord) -> bool:
        timestamp_ms = self._clock.now_ms() if line.timestamp_ms is None else line.timestamp_ms
        return self._producer.add(
            line.value, key=line.key, headers=line.headers, partition=line.partition, timestamp_ms=timestamp_ms
        )

    async def flush(self) -> None:
        await self._producer.flush()
