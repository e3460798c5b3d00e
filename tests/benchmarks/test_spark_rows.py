"""Tests the table of the Spark section: its rows, its figures, and what happens where Spark is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from benchmarks import command, spark, spark_scene
from benchmarks.broker_process import Broker
from benchmarks.figures import Figures
from benchmarks.growth import Point, draw_growth
from benchmarks.results import Results
from benchmarks.spark import RECORDS, ROWS, run_spark
from benchmarks.spark_scene import Row, Scene, on_both, timed
from benchmarks.topics import WrongAnswer
from kbroker.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
OURS = Broker(("127.0.0.1", 1), None)
THEIRS = Broker(("127.0.0.1", 2), None)


def figures(rate: float) -> Figures:
    return Figures(rate, rate, rate, 1.0, 0.0, 0.0)


def run(rows: list[Row], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, only: str = "") -> Results:
    results = Results()
    monkeypatch.setattr(spark, "ROWS", rows)
    run_spark(cast(Any, None), OURS, THEIRS, tmp_path, results, only=only, rounds=1, quick=False)
    return results


def test_rows_have_different_names_and_the_floor_of_the_section() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == 17
    on_both_brokers = [row for row in ROWS if row.cpu_limit is not None]
    assert len(on_both_brokers) == 7
    assert {(row.floor, row.cpu_limit) for row in on_both_brokers} == {(1.1, 1.0)}
    rates = [row.floor for row in ROWS if row.cpu_limit is None and row.units == ("msg/s",)]
    assert sorted(floor or 0.0 for floor in rates) == [0.6, 0.6, 0.7, 0.85, 0.85, 0.95, 0.95, 1.5]
    latencies = [row for row in ROWS if row.units == ("ms p50", "ms p99")]
    assert [row.floor for row in latencies] == [1 / 1.05] * 2


def test_a_row_of_latencies_compares_p50_and_p99(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wait(scene: Scene, broker: Broker) -> Figures:
        return Figures(1.0, 1.0, 1.0, 1.0, *((100.0, 300.0) if broker is OURS else (110.0, 150.0)))

    row = replace(on_both("latency", wait), units=("ms p50", "ms p99"))
    median, tail = run([row], monkeypatch, tmp_path).comparisons
    assert median.ratio == pytest.approx(1.1)
    assert tail.ratio == pytest.approx(0.5)


def test_a_refusal_of_a_pipeline_fails_its_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(scene: Scene, broker: Broker) -> Figures:
        raise UserError("Topic 'orders' does not exist")

    (row,) = run([on_both("refused", refuse)], monkeypatch, tmp_path).comparisons
    assert "Spark failed: Topic 'orders' does not exist" in (row.failure or "")


def test_the_chart_of_growth_has_a_line_for_each_kind_and_each_side() -> None:
    points = [
        Point(kind, by, count, 1e5 * count)
        for by in ("partitions", "executors")
        for kind in ("archive", "copy")
        for count in (1, 2)
    ]
    lines = [element.get("points") for element in ElementTree.fromstring(draw_growth(points)).iter(f"{SVG}polyline")]
    assert len(lines) == 4
    assert lines[0] == "60.0,187.0 360.0,84.0"


def test_a_row_compares_its_two_works_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Broker] = []

    def read(scene: Scene, broker: Broker) -> Figures:
        asked.append(broker)
        return figures(300.0 if broker is OURS else 200.0)

    rows = [on_both("a read", read), on_both("another", read)]
    (comparison,) = run(rows, monkeypatch, tmp_path, only="a read").comparisons
    assert comparison.ratio == 1.5
    assert asked == [OURS, THEIRS] * 2


def test_a_wrong_answer_fails_its_row_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(scene: Scene, broker: Broker) -> Figures:
        raise WrongAnswer("one record is missing")

    rows = [on_both("wrong", fail), on_both("right", lambda scene, broker: figures(1.0))]
    wrong, right = run(rows, monkeypatch, tmp_path).comparisons
    assert "one record is missing" in (wrong.failure or "")
    assert right.failure is None


def test_without_spark_its_rows_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(spark_scene, "import_module", missing)

    def start(scene: Scene, broker: Broker) -> Figures:
        return cast(Figures, scene.spark)

    rows = [on_both("in Spark", start), on_both("elsewhere", lambda scene, broker: figures(1.0))]
    assert [row.name for row in run(rows, monkeypatch, tmp_path).comparisons] == ["elsewhere"]
    assert "Skipped in Spark: pyspark is not installed: run `make install-spark`" in capsys.readouterr().err


def test_the_rate_of_a_work_is_that_of_its_records() -> None:
    result = timed(OURS, 200, lambda: 1000)
    assert result.mb_s == pytest.approx(result.messages_s * 200 / 1e6)


def test_the_number_of_records_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.parse(["spark"]).records == RECORDS
    assert command.parse(["spark", "--records", "1000"]).records == 1000
    with pytest.raises(SystemExit):
        command.parse(["spark", "--records", "0"])
    assert "--records must be at least 1" in capsys.readouterr().err
