"""Kafka's own ProducerPerformance against both brokers: what a stock Java producer with its defaults gets."""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.figures import Figures
from benchmarks.results import Comparison, Results
from benchmarks.rounds import run_in_turn
from benchmarks.topics import Topic, WrongAnswer, create_topic, log_end_offsets
from compat_tests.judge import JavaTools

__all__ = ["parse_summary", "run_clients"]

TOOL = "org.apache.kafka.tools.ProducerPerformance"
JVM = ("-Xmx512m",)
TIMEOUT_SECONDS = 300
ROWS = (  # name, records, bytes of a record
    ("ProducerPerformance, 100 B records", 2_000_000, 100),
    ("ProducerPerformance, 1000 B records", 500_000, 1_000),
)
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
            medians, failure = run_in_turn(name, works, rounds=rounds)
            subject_figures, rival_figures = [*medians, None][:2]
            results.comparisons.append(Comparison(name, "msg/s", subject_figures, rival_figures, failure=failure))


def _produce(tools: JavaTools, broker: Broker, records: int, size: int) -> Figures:
    """A new JVM each time; it is the same for both brokers. CPU counts for a record here."""
    topic = create_topic(broker.address, b"bench-client-" + os.urandom(4).hex().encode())
    arguments = ["--topic", topic.name.decode(), "--num-records", str(records), "--record-size", str(size)]
    arguments += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}"]
    cpu = cpu_seconds(broker.pid)
    command = tools.command(TOOL, arguments, JVM)
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    cpu = cpu_seconds(broker.pid) - cpu
    if result.returncode:
        raise WrongAnswer(f"{TOOL} ended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    _check_end(broker, topic, records)
    return parse_summary(result.stdout, size=size, cpu_seconds=cpu)


def _check_end(broker: Broker, topic: Topic, records: int) -> None:
    ends = log_end_offsets(broker.address, topic)
    if ends != [records]:
        raise WrongAnswer(f"{topic.name.decode()} ends at {ends[0]} after {records} records")


def parse_summary(output: str, *, size: int, cpu_seconds: float) -> Figures:
    """The last line that the tool prints: the one over all records."""
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
