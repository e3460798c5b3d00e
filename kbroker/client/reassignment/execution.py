"""Runs the moves of a plan: a few for each broker at a time, until all replicas are where the plan wants them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from kbroker.client.admin.leaders import elect_leaders
from kbroker.client.cluster import Cluster
from kbroker.client.reassignment.layout import PartitionLayout, PartitionMove, partition_text
from kbroker.client.reassignment.pace import next_moves
from kbroker.client.reassignment.requests import copied_bytes, list_moves, start_moves
from kbroker.client.retry_backoff import RetryBackoff
from kbroker.errors import UserError
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["MoveRunner", "RunProgress", "elect_preferred", "without_preferred_leader"]

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
METADATA_SECONDS: Final = 10.0
"""Time until every broker knows the replicas of a finished move."""


class RunProgress(NamedTuple):
    finished: int
    """Partitions."""
    total: int
    copied_bytes: int
    total_bytes: int
    elapsed_s: float


class MoveRunner:
    """Runs moves to their end. `show` is called after each look at the cluster."""

    def __init__(self, cluster: Cluster, show: Callable[[RunProgress], None], *, moves_per_broker: int) -> None:
        self._cluster = cluster
        self._show = show
        self._moves_per_broker = moves_per_broker
        self._pending: list[PartitionMove] = []
        self._running: dict[TopicPartition, PartitionMove] = {}
        self._finished: list[PartitionMove] = []
        self._started_at = trio.current_time()

    async def run(self, moves: Sequence[PartitionMove]) -> None:
        """Starts the moves and waits until all have finished. Raises UserError if one of them is cancelled."""
        self._pending = list(moves)
        await self._wait_finished(is_ours=True)

    async def follow(self, running: Sequence[PartitionMove]) -> list[PartitionMove]:
        """Waits until no move is under way: of these, and of those that another command starts meanwhile.

        Returns them all, finished or cancelled.
        """
        self._running = {move.key: move for move in running}
        await self._wait_finished(is_ours=False)
        return self._finished

    async def _wait_finished(self, *, is_ours: bool) -> None:
        pause_s = FIRST_PAUSE_SECONDS
        while True:
            ongoing = {move.key: move for move in await list_moves(self._cluster)}
            if not is_ours:
                self._running = {**ongoing, **self._running}
            finished = [self._running.pop(key) for key in list(self._running) if key not in ongoing]
            if is_ours:
                await self._check_moved(finished)
            self._finished += finished
            await self._start_next(ongoing)
            self._show(await self._progress())
            if not self._running and not self._pending:
                return
            pause_s = FIRST_PAUSE_SECONDS if finished else min(2 * pause_s, LONGEST_PAUSE_SECONDS)
            await trio.sleep(pause_s)

    async def _start_next(self, ongoing: Collection[TopicPartition]) -> None:
        started = next_moves(self._pending, self._running.values(), moves_per_broker=self._moves_per_broker)
        for move in started:
            if move.key in ongoing:
                raise UserError(
                    f"{partition_text(move.key)} moves already, for another command. Run this command again to wait "
                    f"for it, or 'kbroker cluster balance --cancel' to cancel it."
                )
        if started:
            await start_moves(self._cluster, started)
        self._running.update((move.key, move) for move in started)
        self._pending = [move for move in self._pending if move.key not in self._running]

    async def _check_moved(self, moves: Sequence[PartitionMove]) -> None:
        """Raises UserError if a partition has other replicas than its move: the move was cancelled.

        A broker may know the end of a move later than the controller.
        """
        backoff = RetryBackoff(METADATA_SECONDS)
        while (failed := await self._not_moved(moves)) is not None:
            await backoff.pause(
                UserError(
                    f"The move of {partition_text(failed.key)} was cancelled by another command. Moves of other "
                    f"partitions may go on. Run this command again to plan the rest."
                )
            )

    async def _not_moved(self, moves: Sequence[PartitionMove]) -> PartitionMove | None:
        """Returns the first partition with other replicas than planned. A deleted topic counts as moved."""
        if not moves:
            return None
        response = await self._cluster.refresh(sorted({move.topic for move in moves}))
        replicas = {
            (topic.name, partition.partition_index): tuple(partition.replica_nodes)
            for topic in response.topics
            for partition in topic.partitions
        }
        return next((move for move in moves if replicas.get(move.key, move.after) != move.after), None)

    async def _progress(self) -> RunProgress:
        waiting = [*self._running.values(), *self._pending]
        done_bytes = sum(move.copied_bytes for move in self._finished)
        return RunProgress(
            len(self._finished),
            len(self._finished) + len(waiting),
            done_bytes + await copied_bytes(self._cluster, self._running.values()),
            done_bytes + sum(move.copied_bytes for move in waiting),
            trio.current_time() - self._started_at,
        )


def without_preferred_leader(partitions: Iterable[PartitionLayout]) -> list[TopicPartition]:
    """Returns the partitions that their preferred leader could lead, but does not."""
    return [
        partition.key
        for partition in partitions
        if partition.leader != partition.replicas[0] and partition.replicas[0] in partition.isr
    ]


async def elect_preferred(cluster: Cluster, keys: Iterable[TopicPartition]) -> int:
    """Elects the preferred leaders of these partitions. Returns the number of partitions with a new leader."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for topic, partition in keys:
        wanted[topic].append(partition)
    if not wanted:
        return 0
    outcomes = await elect_leaders(cluster, wanted)
    return sum(outcome.error is ErrorCode.NONE for outcome in outcomes)
