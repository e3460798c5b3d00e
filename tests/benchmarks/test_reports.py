"""Tests the output of the benchmarks: tables, the chart, the exit code."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import command
from benchmarks.broker_process import Broker, cpu_seconds, named_broker, resident_mb
from benchmarks.chart import draw
from benchmarks.clients import parse_consumed, parse_summary
from benchmarks.figures import Figures, median_figures, percentile_ms
from benchmarks.results import Comparison, Measure, Results
from benchmarks.scale import cold_share, drop_from_cache
from benchmarks.table import comparison_table, measure_table
from benchmarks.topics import WrongAnswer
from benchmarks.wire import ROWS

SVG = "{http://www.w3.org/2000/svg}"


def figures(requests_s: float, cpu_us: float = 10.0) -> Figures:
    return Figures(requests_s, requests_s, requests_s, cpu_us, 1.0, 2.0)


def row(name: str, ratio: float, floor: float = 1.0, *, cpu_ratio: float = 1.0) -> Comparison:
    return Comparison(name, "req/s", figures(1000 * ratio, 10 * cpu_ratio), figures(1000), floor, cpu_limit=0.75)


def test_the_first_round_warms_and_the_median_of_the_others_counts() -> None:
    assert median_figures([figures(1), figures(10), figures(30), figures(20)]).requests_s == 20


def test_percentiles_are_of_the_sorted_latencies() -> None:
    latencies = [milliseconds / 1000 for milliseconds in range(100, 0, -1)]
    assert percentile_ms(latencies, 0.5) == pytest.approx(51)
    assert percentile_ms(latencies, 0.99) == pytest.approx(100)
    assert percentile_ms([0.004], 0.99) == pytest.approx(4)


def test_rows_have_different_names() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) == 19


def test_a_row_below_its_floor_is_marked_and_others_are_not() -> None:
    above, below = comparison_table([row("above", 1.5, cpu_ratio=0.5), row("below", 0.8, cpu_ratio=0.9)]).splitlines()[
        2:
    ]
    assert "1,500 req/s" in above
    assert "below its floor" not in above
    assert "CPU ratio above" not in above
    assert "0.80" in below
    assert "below its floor, CPU ratio above 0.75" in below


def test_a_row_without_a_rival_has_no_ratio() -> None:
    line = comparison_table([Comparison("alone", "req/s", figures(5, 0), None, 2.0)]).splitlines()[2]
    assert re.split(r"\s*\|\s*", line)[1:-1] == ["alone", "5 req/s", "–", "–", "2.00", "–", "–", "–", ""]


def test_of_two_times_the_shorter_one_is_faster() -> None:
    quick = Comparison("settles", "s", figures(4.0), figures(2.0), 0.5)
    assert (quick.subject_value, quick.rival_value, quick.ratio) == (0.25, 0.5, 2.0)
    assert "0.25 s" in comparison_table([quick])
    assert Comparison("settles", "s", figures(1.0), figures(4.0), 0.5).is_below_floor


def test_a_row_below_its_own_minimum_is_marked() -> None:
    slow = Comparison("commits", "req/s", figures(7_000), figures(1_000), 2.0, at_least=8_000)
    enough = Comparison("commits", "req/s", figures(9_000), figures(1_000), 2.0, at_least=8_000)
    below, above = comparison_table([slow, enough]).splitlines()[2:]
    assert "below 8,000 req/s" in below
    assert "below" not in above


def test_a_row_that_a_broker_does_not_serve_has_a_note() -> None:
    line = comparison_table([Comparison("settles", "s", None, None, note="not served")]).splitlines()[2]
    assert "not served" in line


def test_a_measure_over_its_limit_is_marked() -> None:
    under, over, free = measure_table(
        [Measure("a", 0.4, "s", 0.5), Measure("b", 130, "MB", 120), Measure("c", 3, "ms", note="seen")]
    ).splitlines()[2:]
    assert "over its limit" not in under
    assert "over its limit" in over
    assert "seen" in free


def test_the_chart_has_a_bar_for_each_ratio_in_proportion() -> None:
    rows = [row("fast <&>", 4.0), row("slow", 0.5), Comparison("unknown", "req/s", figures(1), None)]
    root = ElementTree.fromstring(draw(rows))
    bars = root.findall(f"{SVG}rect")
    fast, slow = (float(bar.attrib["width"]) for bar in bars)
    assert fast == pytest.approx(8 * slow, rel=0.01)
    assert [bar.attrib["class"] for bar in bars] == ["bar", "bar slower"]
    texts = [element.text for element in root.findall(f"{SVG}text")]
    assert {"fast <&>", "4.0×", "slow", "0.50×"} <= set(texts)
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")


def test_a_chart_without_rows_is_valid() -> None:
    assert ElementTree.fromstring(draw([])).findall(f"{SVG}rect") == []


def run_with(monkeypatch: pytest.MonkeyPatch, comparison: Comparison, *arguments: str) -> int:
    def run(_: argparse.Namespace, results: Results) -> None:
        results.comparisons.append(comparison)

    monkeypatch.setattr(command, "run_side_by_side", run)
    return command.main(["wire", "--quick", *arguments])


def test_a_slow_run_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(monkeypatch, row("slow", 0.1)) == 0
    assert "below its floor" in capsys.readouterr().out


def test_a_wrong_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(monkeypatch, Comparison("broken", "req/s", None, None, failure="error 42")) == 1
    output = capsys.readouterr()
    assert "FAILED" in output.out
    assert "error 42" in output.err


def test_a_broker_that_does_not_start_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace, __: Results) -> None:
        raise ConnectionRefusedError("connection refused")

    monkeypatch.setattr(command, "run_side_by_side", run)
    assert command.main(["wire", "--quick"]) == 1
    assert "connection refused" in capsys.readouterr().err


def test_figures_and_chart_are_written_to_the_named_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = tmp_path / "out.json", tmp_path / "out.svg"
    run_with(monkeypatch, row("slow", 0.5), "--json", str(files[0]), "--svg", str(files[1]))
    (found,) = json.loads(files[0].read_text())["comparisons"]
    assert (found["name"], found["ratio"], found["is_below_floor"]) == ("slow", 0.5, True)
    assert ElementTree.parse(files[1]).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ([], True),
        (["wire"], True),
        (["scale"], False),
        (["--quick"], False),
        (["--rows", "fetch"], False),
        (["--subject", "127.0.0.1:1"], False),
    ],
)
def test_only_a_complete_run_redraws_the_chart_of_the_readme(arguments: list[str], drawn: bool) -> None:
    assert (command.parse(arguments).svg == command.README_CHART) is drawn


def test_a_section_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["wires"])
    assert "unknown section wires" in capsys.readouterr().err


def test_a_running_broker_is_named_by_address_and_process() -> None:
    assert named_broker("127.0.0.1:9092=17") == Broker(("127.0.0.1", 9092), 17)
    assert named_broker("localhost:9092") == Broker(("localhost", 9092), None)
    with pytest.raises(ValueError, match="HOST must be"):
        named_broker("kafka.example.org:9092")


def test_an_unknown_process_has_no_cpu_time_and_no_memory() -> None:
    assert (cpu_seconds(None), resident_mb(None)) == (0, 0)


def test_all_processes_of_a_cluster_count() -> None:
    own = os.getpid()
    assert resident_mb(own, own) > 1.5 * resident_mb(own)
    assert cpu_seconds(own, own) > 1.5 * cpu_seconds(own)
    assert Broker(("127.0.0.1", 1), 5, peers=(6, 7)).pids == (5, 6, 7)


def test_the_summary_of_the_java_producer_is_its_last_line() -> None:
    output = (
        "100 records sent, 20.0 records/sec (0.01 MB/sec), 9.0 ms avg latency, 9.0 ms max latency.\n"
        "4000 records sent, 2500.5 records/sec (2.38 MB/sec), 12.31 ms avg latency, 90.00 ms max latency, "
        "11 ms 50th, 40 ms 95th, 57 ms 99th, 90 ms 99.9th.\n"
    )
    summary = parse_summary(output, size=1000, cpu_seconds=0.2)
    assert (summary.messages_s, summary.mb_s, summary.p50_ms, summary.p99_ms) == (2500.5, 2.5005, 11, 57)
    assert summary.cpu_us_request == pytest.approx(50)


def test_a_java_producer_without_a_summary_is_a_wrong_answer() -> None:
    with pytest.raises(WrongAnswer):
        parse_summary("[WARN] no brokers\n", size=1, cpu_seconds=0)


HEADING = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
)


def test_the_summary_of_the_java_consumer_is_under_its_heading() -> None:
    line = "2026-01-01 00:00:00:000, 2026-01-01 00:00:02:000, 190.7, 95.4, 2000, 1000.5, 500, 1500, 1.0, 1333.3\n"
    consumed = parse_consumed(HEADING + line, records=2000, size=100, cpu_seconds=0.2)
    assert (consumed.messages_s, consumed.mb_s) == (1000.5, 0.10005)
    assert consumed.cpu_us_request == pytest.approx(100)
    with pytest.raises(WrongAnswer, match="2000 of 2001"):
        parse_consumed(HEADING + line, records=2001, size=100, cpu_seconds=0.2)


@pytest.mark.parametrize("output", ["", HEADING, "[WARN] no brokers\n"])
def test_a_java_consumer_without_a_summary_is_a_wrong_answer(output: str) -> None:
    with pytest.raises(WrongAnswer):
        parse_consumed(output, records=1, size=1, cpu_seconds=0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs RWF_NOWAIT and posix_fadvise")
def test_pages_that_were_just_read_are_not_cold(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(bytes(1 << 20))
    drop_from_cache([file])
    file.read_bytes()
    assert cold_share([file]) == 0
