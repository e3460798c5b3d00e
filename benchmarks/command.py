"""The command line of the benchmarks: which brokers, which rows, and where the results go."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import chart, protocol_codecs
from benchmarks.broker_process import (
    Broker,
    JavaMissing,
    java_tools,
    named_broker,
    running_apache_kafka,
    running_kbroker,
)
from benchmarks.clients import run_clients
from benchmarks.groups import run_groups, run_loading
from benchmarks.results import Measure, Results, to_json
from benchmarks.rounds import failure_of, say
from benchmarks.scale import run_scale
from benchmarks.table import comparison_table, measure_table
from benchmarks.wire import run_wire
from compat_tests.judge import JavaTools
from tools.jars import FetchFailed, MavenMissing

__all__ = ["main"]

SECTIONS = ("wire", "groups", "clients", "scale", "protocol")
README_CHART = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.svg"


def main(arguments: Sequence[str]) -> int:
    """0 whatever the timings are; 1 when a broker gave a wrong answer or none."""
    options = parse(arguments)
    results = Results()
    start = time.monotonic()
    if {"wire", "groups", "clients"} & set(options.sections):
        failure = failure_of(partial(run_side_by_side, options, results))
        if failure is not None:
            results.measures.append(Measure("both brokers serve", None, "", failure=failure))
    if "groups" in options.sections:
        run_loading(results, only=options.rows, quick=options.quick)
    if "scale" in options.sections:
        run_scale(results, only=options.rows, rounds=options.rounds, quick=options.quick)
    say(f"measured for {time.monotonic() - start:,.0f} s")
    report(options, results)
    if "protocol" in options.sections and not options.rows:
        print()
        protocol_codecs.main()
    return 1 if results.failures else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kbroker side by side with Apache Kafka")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all if none is named")
    parser.add_argument("--rows", default="", metavar="SUBSTRING", help="only rows whose name contains this")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (3); the median counts")
    parser.add_argument("--quick", action="store_true", help="to try it out: the figures count for nothing")
    parser.add_argument(
        "--subject", type=named_broker, metavar="HOST:PORT=PID", help="a broker that runs, not a new one"
    )
    parser.add_argument("--against", type=named_broker, metavar="HOST:PORT=PID", help="its rival that runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures for a program")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the ratios as a picture")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    options.sections = options.sections or list(SECTIONS)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    elif options.rounds < 1:
        parser.error("--rounds is at least 1")
    whole = "wire" in options.sections and not (options.rows or options.quick or options.subject or options.against)
    if options.svg is None and whole:
        options.svg = README_CHART
    return options


def run_side_by_side(options: argparse.Namespace, results: Results) -> None:
    with ExitStack() as stack:
        _run_side_by_side(options, results, stack)


def _run_side_by_side(options: argparse.Namespace, results: Results, stack: ExitStack) -> None:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
    tools = find_java_tools(directory)
    rival: Broker | None = options.against
    if rival is None and tools is not None:
        say("starting Apache Kafka 4.1 …")
        rival = stack.enter_context(running_apache_kafka(tools, directory))
    subject: Broker = options.subject or stack.enter_context(running_kbroker(directory / "kbroker"))
    how = {"only": options.rows, "rounds": options.rounds, "quick": options.quick}
    if "wire" in options.sections:
        run_wire(subject, rival, results, **how)
    if "groups" in options.sections:
        run_groups(subject, rival, results, **how)
    if "clients" in options.sections and tools is not None:
        run_clients(tools, subject, rival, results, **how)


def find_java_tools(directory: Path) -> JavaTools | None:
    try:
        return java_tools(directory)
    except (JavaMissing, MavenMissing, FetchFailed) as problem:
        say(f"no Apache Kafka beside it, so no ratios: {problem}")
        return None


def report(options: argparse.Namespace, results: Results) -> None:
    if options.quick:
        print("A quick run: it shows that the rows work; its figures count for nothing.\n")
    if results.comparisons:
        print(comparison_table(results.comparisons))
    if results.measures:
        print("\n" + measure_table(results.measures))
    for each in results.failures:
        print(f"\n{each.failure}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(to_json(results))
    if options.svg is not None and any(row.ratio is not None for row in results.comparisons):
        options.svg.write_text(chart.draw(results.comparisons))
