"""Tests the table of the Spark section: its rows, its figures, and what happens where Spark is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import command, spark
from benchmarks.broker_process import Broker
from benchmarks.figures import Figures
from benchmarks.results import Results
from benchmarks.spark import RECORDS, ROWS, Row, Scene, run_spark, timed
from benchmarks.topics import WrongAnswer

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
    assert len({row.name for row in ROWS}) == len(ROWS) == 13
    on_both_brokers = [row for row in ROWS if row.cpu_limit is not None]
    assert len(on_both_brokers) == 7
    assert {(row.floor, row.cpu_limit) for row in on_both_brokers} == {(1.1, 1.0)}
    assert sorted(row.floor or 0.0 for row in ROWS if row.cpu_limit is None) == [0.6, 0.6, 0.7, 0.85, 0.85, 1.5]


def test_a_row_compares_its_two_works_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Broker] = []

    def read(scene: Scene, broker: Broker) -> Figures:
        asked.append(broker)
        return figures(300.0 if broker is OURS else 200.0)

    rows = [spark.read_on("a read", read), spark.read_on("another", read)]
    (comparison,) = run(rows, monkeypatch, tmp_path, only="a read").comparisons
    assert comparison.ratio == 1.5
    assert asked == [OURS, THEIRS] * 2


def test_a_wrong_answer_fails_its_row_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(scene: Scene, broker: Broker) -> Figures:
        raise WrongAnswer("one record is missing")

    rows = [spark.read_on("wrong", fail), spark.read_on("right", lambda scene, broker: figures(1.0))]
    wrong, right = run(rows, monkeypatch, tmp_path).comparisons
    assert "one record is missing" in (wrong.failure or "")
    assert right.failure is None


def test_without_spark_its_rows_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(spark, "import_module", missing)

    def start(scene: Scene, broker: Broker) -> Figures:
        return cast(Figures, scene.spark)

    rows = [spark.read_on("in Spark", start), spark.read_on("elsewhere", lambda scene, broker: figures(1.0))]
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
