"""Output of commands that move replicas: the plan, the moves under way, and a progress line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.output import Cell, format_bytes, pluralize, print_json, print_table

if TYPE_CHECKING:
    from kbroker.client.reassignment.execution import RunProgress
    from kbroker.client.reassignment.layout import BrokerLoad, PartitionMove, ReassignmentPlan

__all__ = ["ProgressLine", "print_moves", "print_moves_json", "print_plan", "print_plan_json", "progress_text"]

MAX_SHOWN_MOVES: Final = 30
SECONDS_BETWEEN_LINES: Final = 10.0
"""Seconds between two progress lines without a terminal."""


def print_plan(plan: ReassignmentPlan, racks: Mapping[int, str | None]) -> None:
    """Prints the moves, and what each broker has before and after them."""
    print_moves(plan.moves)
    click.echo()
    columns = ["broker", "rack", "leaders", "replicas", "size"]
    print_table(columns, [_load_row(plan, broker_id, racks[broker_id]) for broker_id in plan.before])
    click.echo()
    for field in ("leaders", "replicas", "size_bytes"):
        click.echo(_spread(field, plan))
    reordered = sum(not move.adding and not move.removing for move in plan.moves)
    removed = sum(len(move.removing) for move in plan.moves)
    click.echo(
        f"{pluralize(len(plan.moves), 'partition')}: {pluralize(plan.added_replicas, 'replica')} to copy "
        f"({format_bytes(plan.copied_bytes)}), {removed} to remove, {reordered} only to reorder."
    )


def print_moves(moves: Sequence[PartitionMove]) -> None:
    rows: list[list[Cell]] = [
        [
            move.topic,
            move.partition,
            _ids(move.before),
            _ids(move.after),
            format_bytes(move.copied_bytes) if move.adding else None,
        ]
        for move in moves[:MAX_SHOWN_MOVES]
    ]
    print_table(["topic", "partition", "replicas", "new replicas", "copies"], rows)
    if len(moves) > MAX_SHOWN_MOVES:
        click.echo(f"and {pluralize(len(moves) - MAX_SHOWN_MOVES, 'more partition')}; --json prints all")


def _ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))


def _load_row(plan: ReassignmentPlan, broker_id: int, rack: str | None) -> list[Cell]:
    before, after = plan.before[broker_id], plan.after[broker_id]
    return [
        broker_id,
        rack,
        f"{before.leaders} -> {after.leaders}",
        f"{before.replicas} -> {after.replicas}",
        f"{format_bytes(before.size_bytes)} -> {format_bytes(after.size_bytes)}",
    ]


def _spread(field: str, plan: ReassignmentPlan) -> str:
    """Returns the smallest and the largest value of the brokers, before and after."""
    texts = []
    for loads in (plan.before, plan.after):
        values = [int(getattr(load, field)) for load in loads.values()]
        low, high = min(values), max(values)
        texts.append(f"{format_bytes(low)} to {format_bytes(high)}" if field == "size_bytes" else f"{low} to {high}")
    name = {"leaders": "Leaders", "replicas": "Replicas", "size_bytes": "Size"}[field]
    return f"{name} on a broker: {texts[0]} before, {texts[1]} after."


def print_plan_json(plan: ReassignmentPlan, racks: Mapping[int, str | None]) -> None:
    def load(of: BrokerLoad) -> dict[str, Any]:
        return dict(of._asdict())

    print_json(
        {
            "moves": list(map(_move_fields, plan.moves)),
            "copied_replicas": plan.added_replicas,
            "copied_bytes": plan.copied_bytes,
            "brokers": [
                {
                    "broker": broker_id,
                    "rack": racks[broker_id],
                    "before": load(plan.before[broker_id]),
                    "after": load(plan.after[broker_id]),
                }
                for broker_id in plan.before
            ],
        }
    )


def print_moves_json(moves: Sequence[PartitionMove]) -> None:
    print_json(list(map(_move_fields, moves)))


def _move_fields(move: PartitionMove) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "replicas": move.before,
        "new_replicas": move.after,
        "copied_bytes": move.copied_bytes,
    }


class ProgressLine:
    """One line on stderr: redrawn in place on a terminal, printed now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._width = 0
        self._printed_at_s = 0.0

    def show(self, progress: RunProgress) -> None:
        text = progress_text(progress)
        if self._is_terminal:
            click.echo(f"\r{text:{self._width}}", nl=False, err=True)
            self._width = len(text)
        elif progress.elapsed_s - self._printed_at_s >= SECONDS_BETWEEN_LINES:
            self._printed_at_s = progress.elapsed_s
            click.echo(text, err=True)

    def end(self) -> None:
        if self._width:
            click.echo(err=True)


def progress_text(progress: RunProgress) -> str:
    text = f"Moved {progress.finished} of {pluralize(progress.total, 'partition')}"
    if not progress.total_bytes or not progress.elapsed_s:
        return text
    rate = progress.copied_bytes / progress.elapsed_s
    text += f", {format_bytes(progress.copied_bytes)} of {format_bytes(progress.total_bytes)}, {format_bytes(rate)}/s"
    if rate:
        text += f", {_duration((progress.total_bytes - progress.copied_bytes) / rate)} left"
    return text


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
