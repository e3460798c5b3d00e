"""`kbroker perf`: counts what it writes and reads, and reports percentiles."""

from __future__ import annotations

import json
import re

import pytest

from kbroker.cli.latency import Latencies
from tests.cli.conftest import Call


async def test_producing_and_consuming_are_measured(call: Call) -> None:
    await call("topics", "create", "perf-test", "--partitions", "3")
    code, out, err = await call(
        "perf", "produce", "perf-test", "--records", "500", "--size", "50", "--batch-bytes", "4000", "--json"
    )
    assert (code, err) == (0, "")
    written = json.loads(out)
    assert (written["records"], written["bytes"]) == (500, 25_000)
    latency = written["latency_ms"]
    assert list(latency) == ["mean", "p50", "p95", "p99", "p99.9", "max"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    read = json.loads((await call("perf", "consume", "perf-test", "--json")).out)
    assert (read["records"], read["bytes"]) == (500, 25_000)
    part = json.loads((await call("perf", "consume", "perf-test", "--records", "1", "--json")).out)
    assert 1 <= part["records"] <= 500


async def test_the_result_is_a_sentence_and_a_table(call: Call) -> None:
    arguments = ("perf", "produce", "t", "--records", "20", "--rate", "1000", "--acks", "1", "--compression", "gzip")
    lines = (await call(*arguments)).out.splitlines()
    assert re.fullmatch(
        r"Wrote 20 records, 2\.0 KiB, in [\d.]+ s\. Latency of records, from adding to acknowledgement:", lines[0]
    )
    assert lines[1].split("  ")[0] == "RECORDS/S"
    assert len(lines) == 3
    assert (await call("perf", "consume", "t")).out.startswith("Read 20 records, 2.0 KiB, in ")


async def test_the_time_from_adding_to_reading_is_measured(call: Call) -> None:
    await call("topics", "create", "t", "--partitions", "3")
    await call("produce", "t", stdin=b"before\n")
    code, out, err = await call("perf", "latency", "t", "--records", "20", "--size", "10", "--json")
    assert (code, err) == (0, "")
    measured = json.loads(out)
    assert (measured["records"], measured["bytes"]) == (20, 200)
    assert 0 < measured["latency_ms"]["p50"] <= measured["latency_ms"]["max"]
    assert (await call("perf", "latency", "t", "--records", "2")).out.startswith("Passed 2 records, 200 B, in ")


async def test_an_empty_topic_is_read_at_once(call: Call) -> None:
    await call("topics", "create", "empty")
    assert json.loads((await call("perf", "consume", "empty", "--json")).out)["records"] == 0


def test_percentiles_are_right_within_two_percent() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000)
    assert latencies.count == 1000
    assert latencies.mean_s == pytest.approx(0.5005)
    assert latencies.max_s == 1.0
    for percent in (50.0, 95.0, 99.0, 99.9):
        assert latencies.percentile_s(percent) == pytest.approx(percent / 100, rel=0.021)
    assert latencies.percentile_s(100) == 1.0


def test_equal_latencies_and_none_have_percentiles() -> None:
    assert Latencies().percentile_s(99) == Latencies().mean_s == 0.0
    latencies = Latencies()
    latencies.add(0.25, count=10)
    assert latencies.percentile_s(50) == latencies.percentile_s(99.9) == latencies.max_s == 0.25
    latencies.add(0.0)
    assert latencies.percentile_s(1) < 1e-5
