"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import chart, protocol_codecs, spark
from benchmarks.broker_process import (
    Broker,
    JavaMissing,
    java_tools,
    named_broker,
    running_apache_kafka,
    running_kbroker,
)
from benchmarks.cleaner import run_cleaner
from benchmarks.clients import run_clients
from benchmarks.cluster import run_cluster
from benchmarks.failover import run_failover
from benchmarks.groups import run_groups, run_loading
from benchmarks.growth import GROWTH_CHART, run_growth
from benchmarks.hostile import run_hostile
from benchmarks.results import Measure, Results, to_json
from benchmarks.rounds import failure_of, log_progress
from benchmarks.scale import run_scale
from benchmarks.table import comparison_table, measure_table
from benchmarks.tls import run_tls
from benchmarks.wire import run_wire
from compat_tests.apache_kafka import JavaTools
from tools.jars import FetchFailed, MavenMissing

__all__ = ["main"]

SECTIONS = (
    "wire",
    "cleaner",
    "groups",
    "clients",
    "spark",
    "growth",
    "scale",
    "hostile",
    "cluster",
    "failover",
    "tls",
    "protocol",
)
SIDE_BY_SIDE = {"wire", "cleaner", "groups", "clients", "spark"}
README_CHART = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.svg"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 regardless of the timings, 1 if a broker failed or responded wrongly."""
    options = parse(arguments)
    results = Results()
    start = time.monotonic()
    if SIDE_BY_SIDE & set(options.sections):
        failure = failure_of(partial(run_side_by_side, options, results))
        if failure is not None:
            results.measures.append(Measure("start of both brokers", None, "", failure=failure))
    if "groups" in options.sections:
        run_loading(results, only=options.rows, quick=options.quick)
    if "growth" in options.sections:
        svg = None if options.rows or options.quick else GROWTH_CHART
        run_growth(results, only=options.rows, rounds=options.rounds, quick=options.quick, svg=svg)
    if "scale" in options.sections:
        run_scale(results, only=options.rows, rounds=options.rounds, quick=options.quick)
    if "hostile" in options.sections:
        run_hostile(results, only=options.rows, quick=options.quick)
    if "cluster" in options.sections:
        run_cluster(results, only=options.rows, rounds=options.rounds, quick=options.quick)
    if "failover" in options.sections:
        run_failover(results, only=options.rows, quick=options.quick)
    if "tls" in options.sections:
        with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as directory:
            tools = find_java_tools(Path(directory))
            run_tls(tools, results, only=options.rows, rounds=options.rounds, quick=options.quick)
    log_progress(f"Finished in {time.monotonic() - start:,.0f} s")
    report(options, results)
    if "protocol" in options.sections and not options.rows:
        print()
        protocol_codecs.main()
    return 1 if results.failures else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare kbroker with Apache Kafka.")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"section to run: {', '.join(SECTIONS)} (default: all)"
    )
    parser.add_argument("--rows", default="", metavar="SUBSTRING", help="run only rows whose name contains SUBSTRING")
    parser.add_argument("--rounds", type=int, help="rounds for each row; the median is reported (default: 3)")
    parser.add_argument(
        "--records",
        type=int,
        default=spark.RECORDS,
        help="records in each topic of the spark section (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="short trial run; its figures are not meaningful")
    parser.add_argument(
        "--subject", type=named_broker, metavar="HOST:PORT=PID", help="use this running broker instead of a new kbroker"
    )
    parser.add_argument(
        "--against", type=named_broker, metavar="HOST:PORT=PID", help="compare with this running broker"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE as JSON")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a chart of the ratios to FILE")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}; sections are {', '.join(SECTIONS)}")
    options.sections = options.sections or list(SECTIONS)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    elif options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.records < 1:
        parser.error("--records must be at least 1")
    is_complete = "wire" in options.sections and not (
        options.rows or options.quick or options.subject or options.against
    )
    if options.svg is None and is_complete:
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
        log_progress("Starting Apache Kafka 4.1 …")
        rival = stack.enter_context(running_apache_kafka(tools, directory))
    subject: Broker = options.subject or stack.enter_context(running_kbroker(directory / "kbroker"))
    selection = {"only": options.rows, "rounds": options.rounds, "quick": options.quick}
    if "wire" in options.sections:
        run_wire(subject, rival, results, **selection)
    if "cleaner" in options.sections:
        run_cleaner(subject, rival, results, **selection)
    if "groups" in options.sections:
        run_groups(subject, rival, results, **selection)
    if "clients" in options.sections and tools is not None:
        run_clients(tools, subject, rival, results, **selection)
    if "spark" in options.sections and tools is not None and rival is not None:
        spark.run_spark(tools, subject, rival, directory, results, **selection, records=options.records)


def find_java_tools(directory: Path) -> JavaTools | None:
    try:
        return java_tools(directory)
    except (JavaMissing, MavenMissing, FetchFailed) as problem:
        log_progress(f"Cannot run Apache Kafka, so there are no ratios: {problem}")
        return None


def report(options: argparse.Namespace, results: Results) -> None:
    if options.quick:
        print("Quick run: the figures are not meaningful.\n")
    if results.comparisons:
        print(comparison_table(results.comparisons))
    if results.measures:
        print("\n" + measure_table(results.measures))
    for result in results.failures:
        print(f"\n{result.failure}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(to_json(results))
    if options.svg is not None and any(row.ratio is not None for row in results.comparisons):
        options.svg.write_text(chart.draw(results.comparisons))
