"""Prometheus text format: names, labels, escapes, order of lines."""

from __future__ import annotations

import re

from kbroker.histogram import Histogram
from kbroker.web.exposition import Samples, counter, gauge, histogram
from kbroker.web.metrics_table import METRICS

NAME = re.compile(r"(kafka|kbroker|process|python)(_[a-z0-9]+)+")


def test_the_samples_of_one_metric_follow_its_help() -> None:
    requests = counter("requests_total", "Requests.", "api", "version")
    size = gauge("size", "Size.")
    unused = gauge("unused", "Never.")
    samples = Samples([requests, size, unused])
    samples.add(requests, 3, "Produce", 9)
    samples.add(size, 1.5)
    samples.add(requests, 4)
    samples.append(size, "size 2")
    assert samples.encode() == (
        b"# HELP requests_total Requests.\n# TYPE requests_total counter\n"
        b'requests_total{api="Produce",version="9"} 3\nrequests_total 4\n'
        b"# HELP size Size.\n# TYPE size gauge\nsize 1.5\nsize 2\n"
    )


def test_labels_are_escaped() -> None:
    size = gauge("size", "back\\slash\nline", "path")
    samples = Samples([size])
    samples.add(size, 1, 'a"b\\c\nd')
    assert samples.encode() == b'# HELP size back\\\\slash\\nline\n# TYPE size gauge\nsize{path="a\\"b\\\\c\\nd"} 1\n'


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count() -> None:
    times = histogram("times", "Times.", "api")
    values = Histogram()
    for milliseconds in (0.05, 0.3, 0.4, 60_000):
        values.observe(milliseconds)
    samples = Samples([times])
    samples.add_histogram(times, values, "Produce")
    samples.add_histogram(times, values)
    lines = samples.encode().decode().splitlines()
    assert lines[:5] == [
        "# HELP times Times.",
        "# TYPE times histogram",
        'times_bucket{api="Produce",le="0.1"} 1',
        'times_bucket{api="Produce",le="0.25"} 1',
        'times_bucket{api="Produce",le="0.5"} 3',
    ]
    assert lines[16:20] == [
        'times_bucket{api="Produce",le="30000.0"} 3',
        'times_bucket{api="Produce",le="+Inf"} 4',
        'times_sum{api="Produce"} 60000.75',
        'times_count{api="Produce"} 4',
    ]
    assert lines[20] == 'times_bucket{le="0.1"} 1'
    assert lines[-2:] == ["times_sum 60000.75", "times_count 4"]


def test_every_name_is_valid_for_prometheus() -> None:
    assert [metric.name for metric in METRICS if not NAME.fullmatch(metric.name)] == []
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert [metric.name for metric in METRICS if (metric.kind == "counter") != metric.name.endswith("_total")] == []
    assert [metric.name for metric in METRICS if not metric.about.endswith(".")] == []
