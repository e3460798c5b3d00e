"""Prometheus text format: names, labels, escapes, order of lines."""

from __future__ import annotations

import re

from kbroker.web.exposition import Samples, counter, gauge
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


def test_every_name_is_valid_for_prometheus() -> None:
    assert [metric.name for metric in METRICS if not NAME.fullmatch(metric.name)] == []
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert [metric.name for metric in METRICS if (metric.kind == "counter") != metric.name.endswith("_total")] == []
    assert [metric.name for metric in METRICS if not metric.about.endswith(".")] == []
