"""Results as Markdown tables, readable in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import Comparison, Measure

__all__ = ["comparison_table", "measure_table"]

ABSENT = "–"
COMPARISON_HEAD = ("", "kbroker", "Apache Kafka 4.1", "ratio", "floor", "CPU/request", "Kafka's", "ratio", "")
MEASURE_HEAD = ("", "measured", "at most", "")


def comparison_table(rows: Sequence[Comparison]) -> str:
    return _table(COMPARISON_HEAD, [_comparison_cells(row) for row in rows])


def measure_table(measures: Sequence[Measure]) -> str:
    return _table(MEASURE_HEAD, [_measure_cells(measure) for measure in measures])


def _comparison_cells(row: Comparison) -> tuple[str, ...]:
    ours = row.subject.cpu_us_request if row.subject else None
    theirs = row.rival.cpu_us_request if row.rival else None
    remarks = ["FAILED"] * (row.failure is not None) + ["below its floor"] * row.is_below_floor
    remarks += [f"CPU ratio above {row.cpu_limit}"] * row.is_over_cpu_limit
    remarks += [f"below {_number(row.at_least, row.unit)}"] * row.is_below_minimum + [row.note] * bool(row.note)
    return (
        row.name,
        _number(row.subject_value, row.unit, digits=_digits(row.unit)),
        _number(row.rival_value, row.unit, digits=_digits(row.unit)),
        _number(row.ratio, digits=2),
        _number(row.floor, digits=2),
        _cpu(ours),
        _cpu(theirs),
        _number(row.cpu_ratio, digits=2),
        ", ".join(remarks),
    )


def _measure_cells(measure: Measure) -> tuple[str, ...]:
    remarks = ["FAILED"] * (measure.failure is not None) + ["over its limit"] * measure.is_over_limit
    remarks += [measure.note] * bool(measure.note)
    return (
        measure.name,
        _number(measure.value, measure.unit, digits=_digits(measure.unit)),
        _number(measure.limit, measure.unit, digits=_digits(measure.unit)),
        ", ".join(remarks),
    )


def _digits(unit: str) -> int:
    return {"s": 2, "x": 2, "ms": 2, "µs": 2}.get(unit, 0)


def _cpu(microseconds: float | None) -> str:
    """Formats CPU time. 0 means unknown: no process id, or the run was too short for the clock of /proc."""
    return _number(microseconds or None, "µs", digits=1 if microseconds and microseconds < 10 else 0)


def _number(value: float | None, unit: str = "", *, digits: int = 0) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.{digits}f} {unit}".rstrip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    last = len(head) - 1

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if column in (0, last) else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)])
