"""`kbroker perf`: measures throughput and latency, like Kafka's scripts for producers, consumers and both together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.command import Command, Function, Group, bootstrap_option, check_topic_name, json_option
from kbroker.cli.commands.produce import ACKS, CODECS
from kbroker.cli.latency import PERCENTILES, Latencies
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import format_bytes, pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.clock import SystemClock

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.producing import Producer

__all__ = ["command"]

_LIVE_SECONDS: Final = 1.0
_PAYLOADS: Final = 64
_FLUSHES_PER_SECOND: Final = 100
_MIB: Final = 1 << 20


def _records_options(*, default_count: int) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        sized = click.option(
            "--size", type=click.IntRange(1), metavar="BYTES", default=100, show_default=True, help="Size of a value."
        )(function)
        return click.option(
            "--records",
            "count",
            type=click.IntRange(1),
            metavar="N",
            default=default_count,
            show_default=True,
            help="Number of records.",
        )(sized)

    return add


@click.group("perf", cls=Group)
def command() -> None:
    """Measure throughput and latency of producing and consuming."""


class _Meter:
    """Counts records and bytes, and shows a line each second if stderr is a terminal."""

    def __init__(self, verb: str) -> None:
        self.records = 0
        self.size_bytes = 0
        self.latencies = Latencies()
        self._verb = verb
        self._clock = SystemClock()
        self._start = self._last = self._clock.monotonic()
        self._last_records = self._last_bytes = 0
        self._recent = Latencies()
        self._is_live = sys.stderr.isatty()

    def now(self) -> float:
        return self._clock.monotonic()

    def add_latency(self, seconds: float, count: int = 1) -> None:
        self.latencies.add(seconds, count)
        if self._is_live:
            self._recent.add(seconds, count)

    def update(self) -> None:
        """Shows the last second, if it is over."""
        now = self.now()
        seconds = now - self._last
        if not self._is_live or seconds < _LIVE_SECONDS:
            return
        rate = (self.records - self._last_records) / seconds
        size = format_bytes((self.size_bytes - self._last_bytes) / seconds)
        recent = self._recent
        middle, high = (recent.percentile_s(percent) * 1000 for percent in (50, 99))
        line = f"{self._verb} {self.records:,}  {rate:,.0f} records/s  {size}/s"
        sys.stderr.write(f"\r\x1b[K{line}  p50 {middle:.1f} ms  p99 {high:.1f} ms  max {recent.max_s * 1000:.1f} ms")
        sys.stderr.flush()
        self._last, self._last_records, self._last_bytes, self._recent = now, self.records, self.size_bytes, Latencies()

    def result(self) -> dict[str, Any]:
        seconds = max(self.now() - self._start, 1e-9)
        milliseconds = {f"p{percent:g}": self.latencies.percentile_s(percent) * 1000 for percent in PERCENTILES}
        latency = {"mean": self.latencies.mean_s * 1000, **milliseconds, "max": self.latencies.max_s * 1000}
        return {
            "records": self.records,
            "bytes": self.size_bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.records / seconds, 1),
            "mib_per_second": round(self.size_bytes / _MIB / seconds, 2),
            "latency_ms": {name: round(value, 3) for name, value in latency.items()},
        }

    def print(self, latency_of: str, *, as_json: bool) -> None:
        if self._is_live:
            sys.stderr.write("\r\x1b[K")
        result = self.result()
        if as_json:
            print_json(result)
            return
        click.echo(
            f"{self._verb} {pluralize(self.records, 'record')}, {format_bytes(self.size_bytes)}, "
            f"in {result['seconds']:.2f} s. Latency of {latency_of}:"
        )
        latency: dict[str, float] = result["latency_ms"]
        columns = ["records/s", "mib/s", *(f"{name} ms" for name in latency)]
        figures = [result["records_per_second"], result["mib_per_second"], *latency.values()]
        print_table(columns, [[f"{figure:,.2f}".removesuffix(".00") for figure in figures]])


@command.command(
    "produce",
    cls=Command,
    examples=[
        ("kbroker perf produce perf-test --records 10000 --size 100", "Write 10,000 records of 100 bytes"),
        ("kbroker perf produce perf-test --records 1000 --rate 500 --json", "Measure latency at 500 records/s"),
        ("kbroker perf produce perf-test --records 5000 --size 1000 --compression zstd", "Write compressed batches"),
    ],
)
@click.argument("topic", callback=check_topic_name, shell_complete=complete_topic)
@_records_options(default_count=100_000)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Maximum records per second.")
@click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Required acknowledgements."
)
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Compression codec.")
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, 1 << 20),
    metavar="BYTES",
    default=65536,
    show_default=True,
    help="Size of a batch. Larger batches have a higher throughput and a higher latency.",
)
@json_option
@bootstrap_option
def produce(
    topic: str,
    count: int,
    size: int,
    rate: float | None,
    acks: str,
    compression: str,
    batch_bytes: int,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Measure producing: records per second, and the time from adding a record to its acknowledgement.

    Writes random values without a key. Sends one request at a time to each leader, and builds batches in Python,
    which limits the throughput. Creates the topic if the broker allows it.
    """

    async def call(cluster: Cluster) -> _Meter:
        from kbroker.client.producing import Producer

        producer = Producer(cluster, topic, acks=ACKS[acks], codec=CODECS.index(compression), batch_bytes=batch_bytes)
        await producer.start()
        return await _produce(producer, count, size, rate)

    run_with_cluster(bootstrap, call).print("records, from adding to acknowledgement", as_json=as_json)


async def _produce(producer: Producer, count: int, size: int, rate: float | None) -> _Meter:
    import trio

    payloads = _payloads(size)
    burst = None if rate is None else max(1, int(rate / _FLUSHES_PER_SECOND))
    meter = _Meter("Wrote")
    clock = SystemClock()
    start = trio.current_time()
    added: list[float] = []

    async def flush() -> None:
        await producer.flush()
        now = meter.now()
        for moment in added:
            meter.add_latency(now - moment)
        meter.records += len(added)
        meter.size_bytes += len(added) * size
        added.clear()
        meter.update()

    for number in range(count):
        is_full = producer.add(payloads[number % _PAYLOADS], timestamp_ms=clock.now_ms())
        added.append(meter.now())
        if is_full or (burst is not None and len(added) >= burst):
            await flush()
            if rate is not None:
                await trio.sleep_until(start + (number + 1) / rate)
    await flush()
    return meter


def _payloads(size: int) -> list[bytes]:
    """Returns values of random capital letters, as kafka-producer-perf-test writes them: they compress somewhat."""
    generator, letters = Random(), range(ord("A"), ord("Z") + 1)
    return [bytes(generator.choices(letters, k=size)) for _ in range(_PAYLOADS)]


@command.command(
    "consume",
    cls=Command,
    examples=[
        ("kbroker perf consume perf-test", "Read all records of a topic"),
        ("kbroker perf consume perf-test --records 50000 --json", "Read 50,000 records, print JSON"),
    ],
)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--records", "count", type=click.IntRange(1), metavar="N", help="Stop after N records. [default: all]")
@click.option(
    "--fetch-bytes",
    type=click.IntRange(1),
    metavar="BYTES",
    default=_MIB,
    show_default=True,
    help="Maximum bytes of a partition in a fetch response.",
)
@json_option
@bootstrap_option
def consume(topic: str, count: int | None, fetch_bytes: int, as_json: bool, bootstrap: str) -> None:
    """Measure consuming: records per second, and the time of a fetch.

    Reads from the earliest offset to the current end. The records are decoded in Python, which limits the throughput.
    """

    async def call(cluster: Cluster) -> _Meter:
        from kbroker.cli.record_range import find_range
        from kbroker.client.consuming import Consumer, read_until

        span = await find_range(cluster, topic)
        meter = _Meter("Read")
        consumer = Consumer(cluster, topic, span.starts, partition_bytes=fetch_bytes)
        async with aclosing(read_until(consumer, span.ends, on_fetch=meter.add_latency)) as found:
            async for fetched in found:
                meter.records += len(fetched.records)
                meter.size_bytes += sum(len(record.key or b"") + len(record.value or b"") for record in fetched.records)
                meter.update()
                if count is not None and meter.records >= count:
                    break
        return meter

    run_with_cluster(bootstrap, call).print("fetches", as_json=as_json)


@command.command(
    "latency",
    cls=Command,
    examples=[
        ("kbroker perf latency perf-test --records 100", "Measure the time of 100 records, one after another"),
        ("kbroker perf latency perf-test --records 50 --acks 1 --json", "Wait for the leader only, print JSON"),
    ],
)
@click.argument("topic", callback=check_topic_name, shell_complete=complete_topic)
@_records_options(default_count=1000)
@click.option(
    "--acks", type=click.Choice(["all", "1"]), default="all", show_default=True, help="Required acknowledgements."
)
@json_option
@bootstrap_option
def latency(topic: str, count: int, size: int, acks: str, as_json: bool, bootstrap: str) -> None:
    """Measure the time from adding a record until a consumer has read it, one record after another.

    Creates the topic if the broker allows it.
    """

    async def call(cluster: Cluster) -> _Meter:
        from kbroker.client.producing import Producer

        producer = Producer(cluster, topic, acks=ACKS[acks])
        await producer.start()
        return await _measure_each(cluster, producer, topic, count, size)

    run_with_cluster(bootstrap, call).print("records, from adding to reading", as_json=as_json)


async def _measure_each(cluster: Cluster, producer: Producer, topic: str, count: int, size: int) -> _Meter:
    from kbroker.cli.record_range import find_range
    from kbroker.client.consuming import Consumer

    consumer = Consumer(cluster, topic, (await find_range(cluster, topic)).ends)
    payloads, clock, meter = _payloads(size), SystemClock(), _Meter("Passed")
    for number in range(count):
        began = meter.now()
        producer.add(payloads[number % _PAYLOADS], timestamp_ms=clock.now_ms())
        await producer.flush()
        written = sum(producer.counts.values())
        while meter.records < written:
            meter.records += sum(len(fetched.records) for fetched in await consumer.poll())
        meter.add_latency(meter.now() - began)
        meter.size_bytes += size
        meter.update()
    return meter
