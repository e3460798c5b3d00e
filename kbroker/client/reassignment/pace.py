"""Decides which moves of a plan start next, so that no broker copies many partitions at a time. Pure: no requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kbroker.client.reassignment.layout import PartitionMove

__all__ = ["next_moves"]


def next_moves(
    pending: Sequence[PartitionMove], running: Iterable[PartitionMove], *, moves_per_broker: int
) -> list[PartitionMove]:
    """Returns the moves to start, in the order of the plan.

    A broker takes part in at most `moves_per_broker` moves, as the leader that is copied from or as a new replica. A
    move that copies nothing starts at once.
    """
    busy: Counter[int] = Counter()
    for move in running:
        busy.update(_participants(move))
    started = []
    for move in pending:
        participants = _participants(move)
        if all(busy[broker_id] < moves_per_broker for broker_id in participants):
            busy.update(participants)
            started.append(move)
    return started


def _participants(move: PartitionMove) -> tuple[int, ...]:
    return (move.leader, *move.adding) if move.adding else ()
