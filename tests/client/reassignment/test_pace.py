"""Which moves start next: no broker copies more partitions at a time than it may."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.reassignment.layout import PartitionMove
from kbroker.client.reassignment.pace import next_moves


def move(partition: int, source: int, target: int) -> PartitionMove:
    return PartitionMove("orders", partition, (source,), (target,), source)


moves = st.builds(move, st.integers(0, 1000), st.integers(1, 3), st.integers(4, 6))


@given(st.lists(moves), st.lists(moves, max_size=3), st.integers(1, 4))
def test_no_broker_takes_part_in_too_many_moves(
    pending: list[PartitionMove], running: list[PartitionMove], limit: int
) -> None:
    started = next_moves(pending, running, moves_per_broker=limit)
    busy = Counter(broker for moving in (*running, *started) for broker in (moving.leader, *moving.adding))
    already = Counter(broker for moving in running for broker in (moving.leader, *moving.adding))
    assert all(count <= max(limit, already[broker]) for broker, count in busy.items())
    assert started or not pending or running


def test_a_move_whose_brokers_are_free_does_not_wait_for_others() -> None:
    pending = [move(0, 1, 4), move(1, 1, 5), move(2, 2, 5)]
    assert next_moves(pending, [], moves_per_broker=1) == [pending[0], pending[2]]


def test_a_move_that_copies_nothing_starts_at_once() -> None:
    reordered = PartitionMove("orders", 0, (1, 2), (2, 1), 1)
    removed = PartitionMove("orders", 1, (1, 2), (1,), 1)
    assert next_moves([reordered, removed], [move(2, 1, 2)], moves_per_broker=1) == [reordered, removed]
