"""The parts of an audit that need no Spark: its file, counts, comparison and report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.audit_counts import AuditCount, ProducerCounts, add_up, parse_count
from kbroker.pipeline.audit_file import AuditPlan
from kbroker.pipeline.audit_report import compare_counts, report_svg, report_table
from kbroker.pipeline.definition import TableSink, TopicsToRead, read_pipeline

AUDIT = """
kind = "audit"
checkpoint = "state"

[audit]
bootstrap = "127.0.0.1:9092"
topic = "audit"
window_seconds = 10

[hops.broker]
topics = ["orders"]

[hops.archive]
path = "table"

[hops.mirror]
bootstrap = "127.0.0.1:9093"
topics = ["orders"]
copies_only = true
"""

MINUTE = 60_000
PREVIOUS = {"broker": "producer", "archive": "broker", "mirror": "broker"}


def read_plan(directory: Path, text: str) -> AuditPlan:
    path = directory / "audit.toml"
    path.write_text(text)
    plan: AuditPlan = read_pipeline(path).job
    return plan


def test_the_file_names_the_hops_in_their_order(tmp_path: Path) -> None:
    plan = read_plan(tmp_path, AUDIT)
    assert [(hop.name, hop.previous, hop.copies_only) for hop in plan.hops] == [
        ("broker", "producer", False),
        ("archive", "broker", False),
        ("mirror", "broker", True),
    ]
    broker, archive, mirror = (hop.records for hop in plan.hops)
    assert isinstance(broker, TopicsToRead)
    assert isinstance(mirror, TopicsToRead)
    assert (broker.bootstrap, mirror.bootstrap) == ("127.0.0.1:9092", "127.0.0.1:9093")
    assert isinstance(archive, TableSink)
    assert archive.path == str(tmp_path / "table")
    assert (plan.window_ms, plan.settle_ms, plan.report) == (10_000, 60_000, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (AUDIT.replace("[audit]", "[audits]"), "audit is missing: the topic of the counts"),
        (AUDIT.partition("[hops")[0], "hops is missing"),
        (AUDIT + "[hops.producer]\ntopics = 'orders'", "producers publish their own counts"),
        (AUDIT + "[hops.late]\ntopics = 'orders'\nafter = 'nowhere'", "hops.late.after is 'nowhere'"),
        (AUDIT.replace("copies_only", "copies"), "hops.mirror.copies is unknown"),
    ],
)
def test_a_wrong_file_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=rf"audit\.toml:\d+: {problem}"):
        read_plan(tmp_path, text)


def test_a_producer_publishes_what_changed_and_a_repeated_count_replaces_the_first() -> None:
    producer = ProducerCounts("shop-1", window_ms=MINUTE)
    producer.add("orders", 5)
    producer.add("orders", MINUTE + 1, 3)
    first = producer.changed()
    assert [(count.window_start_ms, count.records) for count in first] == [(0, 1), (MINUTE, 3)]
    assert producer.changed() == []
    producer.add("orders", MINUTE - 1)
    second = producer.changed()
    other = [AuditCount("producer", "shop-2", "orders", 0, MINUTE, 10)]
    published = [parse_count(count.value) for count in [*first, *second, *other, *second]]
    totals = add_up([count for count in published if count is not None], MINUTE)
    assert totals == {("orders", 0): {"producer": 12}, ("orders", MINUTE): {"producer": 3}}


def test_smaller_windows_of_producers_are_added_to_the_windows_of_the_audit() -> None:
    counts = [AuditCount("producer", "p", "orders", start, 10_000, 1) for start in range(0, 120_000, 10_000)]
    assert add_up(counts, MINUTE) == {("orders", 0): {"producer": 6}, ("orders", MINUTE): {"producer": 6}}
    assert add_up([AuditCount("producer", "p", "orders", 0, 7, 1)], MINUTE) == {}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b"\xff",
        AuditCount("h", "i", "t", 0, 0, 1).value,
        AuditCount("h", "i", "t", 0, 1, 1).value.replace(b"1}", b'"1"}'),
    ],
)
def test_a_record_that_is_not_a_count_is_ignored(value: bytes | None) -> None:
    assert parse_count(value) is None


COUNTS = {
    ("orders", 0): {"producer": 10, "broker": 10, "archive": 10, "mirror": 10},
    ("orders", MINUTE): {"producer": 10, "broker": 9, "archive": 9, "mirror": 11},
    ("orders", 2 * MINUTE): {"broker": 2, "archive": 2},
    ("orders", 3 * MINUTE): {"producer": 5},
    ("payments", 0): {"broker": 7, "archive": 7, "mirror": 7},
}


def test_the_report_names_loss_and_duplicates_by_window() -> None:
    report = compare_counts(COUNTS, PREVIOUS, window_ms=MINUTE, settled_before_ms=3 * MINUTE)
    assert [(window.topic, window.start_ms // MINUTE, window.verdict) for window in report.windows] == [
        ("orders", 0, "ok"),
        ("orders", 1, "broker: 1 lost after producer; mirror: 2 duplicates after broker"),
        ("orders", 2, "broker: 2 duplicates after producer; mirror: 2 lost after broker"),
        ("orders", 3, "open"),
        ("payments", 0, "ok"),
    ]
    assert [window.start_ms for window in report.faults] == [MINUTE, 2 * MINUTE]


def test_the_table_has_one_line_for_each_window() -> None:
    report = compare_counts(COUNTS, PREVIOUS, window_ms=MINUTE, settled_before_ms=3 * MINUTE)
    lines = report_table(report).splitlines()
    assert lines[0].split() == ["topic", "window", "producer", "broker", "archive", "mirror", "result"]
    assert lines[2] == (
        "orders    1970-01-01 00:01:00        10       9        9      11  "
        "broker: 1 lost after producer; mirror: 2 duplicates after broker"
    )
    assert len(lines) == 1 + len(COUNTS)


def test_the_chart_is_an_svg_with_a_line_for_each_hop_and_the_faults_marked() -> None:
    report = compare_counts(COUNTS, PREVIOUS, window_ms=MINUTE, settled_before_ms=3 * MINUTE)
    root = ElementTree.fromstring(report_svg(report))
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert names.count("polyline") == 4 + 3, "payments has no producer that counts"
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert titles == [
        "1970-01-01 00:01:00 broker: 1 lost after producer; mirror: 2 duplicates after broker",
        "1970-01-01 00:02:00 broker: 2 duplicates after producer; mirror: 2 lost after broker",
    ]
    empty = compare_counts({}, PREVIOUS, window_ms=MINUTE, settled_before_ms=0)
    assert ElementTree.fromstring(report_svg(empty)) is not None
