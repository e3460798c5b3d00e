"""Progress of a pipeline, as Spark reports it after each batch: rows, rates, offsets, lag by topic. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["ROWS_OUT", "Progress", "offsets_of", "progress_of"]

ROWS_OUT: Final = "kbroker_rows_out"


@dataclass(frozen=True, slots=True)
class Progress:
    batch: int
    rows_in: int
    rows_out: int | None
    """None if the sink does not count its rows."""
    rows_per_s: float
    batch_ms: int
    lag: Mapping[str, int] = field(default_factory=dict)
    """Topic -> records that the pipeline has not read yet."""
    is_batch: bool = True
    """Whether a batch ran. Spark also reports that there was nothing to do."""


def progress_of(report: Mapping[str, Any]) -> Progress:
    """Returns the progress of one batch from the JSON of Spark's StreamingQueryProgress."""
    sources = report.get("sources") or []
    durations = report.get("durationMs") or {}
    lag: dict[str, int] = {}
    for source in sources:
        for topic, count in source_lag(source).items():
            lag[topic] = lag.get(topic, 0) + count
    return Progress(
        batch=report.get("batchId", 0),
        rows_in=int(_total(report, "numInputRows")),
        rows_out=_rows_out(report),
        rows_per_s=_total(report, "processedRowsPerSecond"),
        batch_ms=durations.get("triggerExecution", 0),
        lag=lag,
        is_batch="addBatch" in durations,
    )


def _rows_out(report: Mapping[str, Any]) -> int | None:
    """Returns what `observe` has counted (see frames.py), or else what the sink reports."""
    observed = (report.get("observedMetrics") or {}).get(ROWS_OUT)
    if observed is not None:
        rows = observed["rows"] if isinstance(observed, Mapping) else observed[0]
        return int(rows[0] if isinstance(rows, list) else rows)  # Spark Connect: a row of the values and their schema
    counted = (report.get("sink") or {}).get("numOutputRows", -1)
    return None if counted is None or counted < 0 else counted


def _total(report: Mapping[str, Any], name: str) -> float:
    """Returns a number of the report. Spark Connect has only the numbers of the sources."""
    number = report.get(name)
    if number is not None:
        return _finite(number)
    return sum(_finite(source.get(name)) for source in report.get("sources") or [])


def _finite(rate: Any) -> float:
    number = float(rate or 0)
    return number if number == number and abs(number) != float("inf") else 0.0


def source_lag(source: Mapping[str, Any]) -> dict[str, int]:
    """Returns topic -> latest offset minus end offset of the batch. {} for sources that are not topics."""
    end, latest = offsets_of(source.get("endOffset")), offsets_of(source.get("latestOffset"))
    return {
        topic: sum(max(0, offset - end.get(topic, {}).get(partition, 0)) for partition, offset in partitions.items())
        for topic, partitions in latest.items()
    }


def offsets_of(value: Any) -> dict[str, dict[int, int]]:
    """Returns topic -> partition -> offset from the JSON of Spark's Kafka source; {} for other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict) or not all(isinstance(partitions, dict) for partitions in value.values()):
        return {}
    try:
        return {
            topic: {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in value.items()
        }
    except (TypeError, ValueError):
        return {}
