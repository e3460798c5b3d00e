"""Kafka's own ProducerPerformance and ConsumerPerformance against both brokers: throughput of stock Java clients."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.figures import Figures
from benchmarks.load import produce
from benchmarks.results import Comparison, Results
from benchmarks.rounds import run_in_turn
from benchmarks.topics import Topic, WrongAnswer, create_topic, log_end_offsets
from benchmarks.wire import make_payload
from compat_tests.apache_kafka import JavaTools

__all__ = ["consume_with_java", "parse_consumed", "parse_summary", "run_clients"]

TOOL = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_TOOL = "org.apache.kafka.tools.ConsumerPerformance"
JVM = ("-Xmx512m",)
TIMEOUT_SECONDS = 300
ROWS = (  # name, records, bytes of a record
    ("ProducerPerformance, 100 B records", 2_000_000, 100),
    ("ProducerPerformance, 1000 B records", 500_000, 1_000),
)
CONSUMER_ROW = ("ConsumerPerformance, 100 B records", 5_000_000, 100)
CONSUMED_FIELDS = 10
STORED_COUNT = 150  # records of 100 bytes that fill a batch of the default size, 16 KB
QUICK_DIVISOR = 20
SUMMARY = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?"
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th",
    re.MULTILINE,
)


def run_clients(
    tools: JavaTools, subject: Broker, rival: Broker | None, results: Results, *, only: str, rounds: int, quick: bool
) -> None:
    brokers = [broker for broker in (subject, rival) if broker is not None]
    divisor = QUICK_DIVISOR if quick else 1
    for name, records, size in ROWS:
        if only in name:
            works = [partial(_produce, tools, broker, records // divisor, size) for broker in brokers]
            results.comparisons.append(_compare(name, works, rounds))
    name, records, size = CONSUMER_ROW
    if only in name:
        readers = [_StoredTopic(tools, broker, records // divisor, size) for broker in brokers]
        results.comparisons.append(_compare(name, [reader.consume for reader in readers], rounds))


def _compare(name: str, works: Sequence[Callable[[], Figures]], rounds: int) -> Comparison:
    medians, failure = run_in_turn(name, works, rounds=rounds)
    subject, rival = [*medians, None][:2]
    return Comparison(name, "msg/s", subject, rival, failure=failure)


class _StoredTopic:
    """Topic to read, filled before its first use. Each read starts a new JVM and a new group."""

    def __init__(self, tools: JavaTools, broker: Broker, records: int, size: int) -> None:
        self._tools, self._broker, self._size = tools, broker, size
        self._requests = -(-records // STORED_COUNT)
        self._topic: Topic | None = None

    def consume(self) -> Figures:
        if self._topic is None:
            self._topic = create_topic(self._broker.address, b"bench-client-" + os.urandom(4).hex().encode())
            payload = make_payload(STORED_COUNT, self._size)
            produce(self._broker, self._topic, payload, requests=self._requests, in_flight=5)
        return consume_with_java(self._tools, self._broker, self._topic, self._size)


def consume_with_java(tools: JavaTools, broker: Broker, topic: Topic, size: int) -> Figures:
    """Reads the topic, with records of `size` bytes, by ConsumerPerformance in a new JVM and a new group."""
    records = sum(topic.ends)
    arguments = ["--topic", topic.name.decode(), "--messages", str(records), "--bootstrap-server", broker.bootstrap]
    output, cpu = _run(tools, broker, CONSUMER_TOOL, arguments)
    return parse_consumed(output, records=records, size=size, cpu_seconds=cpu)


def _produce(tools: JavaTools, broker: Broker, records: int, size: int) -> Figures:
    """Runs ProducerPerformance in a new JVM. `cpu_us_request` of the result is CPU time for each record."""
    topic = create_topic(broker.address, b"bench-client-" + os.urandom(4).hex().encode())
    arguments = ["--topic", topic.name.decode(), "--num-records", str(records), "--record-size", str(size)]
    arguments += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}"]
    output, cpu = _run(tools, broker, TOOL, arguments)
    _check_end(broker, topic, records)
    return parse_summary(output, size=size, cpu_seconds=cpu)


def _run(tools: JavaTools, broker: Broker, tool: str, arguments: Sequence[str]) -> tuple[str, float]:
    """Returns the tool's output and the CPU seconds that the broker used during the run."""
    cpu = cpu_seconds(broker.pid)
    command = tools.command(tool, arguments, JVM)
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    cpu = cpu_seconds(broker.pid) - cpu
    if result.returncode:
        raise WrongAnswer(f"{tool} ended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.stdout, cpu


def _check_end(broker: Broker, topic: Topic, records: int) -> None:
    ends = log_end_offsets(broker.address, topic)
    if ends != [records]:
        raise WrongAnswer(f"Log end offset of {topic.name.decode()} is {ends[0]} after {records} records")


def parse_summary(output: str, *, size: int, cpu_seconds: float) -> Figures:
    """Parses the last line of ProducerPerformance, the summary of all records."""
    matches = list(SUMMARY.finditer(output))
    if not matches:
        raise WrongAnswer(f"{TOOL} printed no summary:\n{output[-2000:]}")
    last = matches[-1]
    rate, records = float(last["rate"]), int(last["records"])
    return Figures(
        requests_s=rate,
        messages_s=rate,
        mb_s=rate * size / 1e6,
        cpu_us_request=cpu_seconds / records * 1e6,
        p50_ms=float(last["p50"]),
        p99_ms=float(last["p99"]),
    )


def parse_consumed(output: str, *, records: int, size: int, cpu_seconds: float) -> Figures:
    """Parses the last line of ConsumerPerformance. Its rate includes the time to join the group."""
    fields = [field.strip() for field in output.strip().splitlines()[-1].split(",")] if output.strip() else []
    if len(fields) != CONSUMED_FIELDS or not fields[4].isdigit():
        raise WrongAnswer(f"{CONSUMER_TOOL} printed no summary:\n{output[-2000:]}")
    if int(fields[4]) != records:
        raise WrongAnswer(f"{CONSUMER_TOOL} got {fields[4]} of {records} records")
    rate = float(fields[5])
    return Figures(
        requests_s=rate,
        messages_s=rate,
        mb_s=rate * size / 1e6,
        cpu_us_request=cpu_seconds / records * 1e6,
        p50_ms=0.0,
        p99_ms=0.0,
    )
