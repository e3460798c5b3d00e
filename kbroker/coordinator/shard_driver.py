"""One group shard over its partition: appends and replays a result's records, then sends its responses.

A failed append changes nothing: the group returns to the state in the log, and all its waiting requests get the error.
Offset commits of requests that were read together share a batch; every other request flushes them first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from kbroker.clock import Clock
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.coordinator.shard_log import CoordinatedPartition, ShardLog, Timers, coordinator_error
from kbroker.group.records import StoredGroup
from kbroker.group.result import GroupResult, Now, PatternsToMatch
from kbroker.group.shard import GroupShard
from kbroker.log.append_result import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.records import Record, build_batch

__all__ = ["ShardDriver"]

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the cost of a NamedTuple's own constructor, for every heartbeat


class ShardDriver:
    def __init__(
        self,
        partition: CoordinatedPartition,
        shard: GroupShard,
        *,
        clock: Clock,
        timers: Timers,
        flush_at_end: Callable[[Callable[[], None]], None],
        match_patterns: Callable[[ShardDriver, PatternsToMatch], None] = lambda driver, patterns: None,
        compute_assignment: Callable[[ShardDriver, str], None] = lambda driver, group_id: None,
    ) -> None:
        """`flush_at_end` schedules a callback after the requests that were read together.

        `match_patterns` starts to match patterns in the background; the shard gets the topics by
        `consumer_patterns_matched`. `compute_assignment` does the same for an assignment, and `consumers_assigned`.
        """
        self.log = ShardLog(partition, shard.replay, clock=clock, timers=timers)
        self.shard = shard
        self.is_loaded = False
        self._clock = clock
        self._timers = timers
        self._flush_at_end = flush_at_end
        self._match_patterns = match_patterns
        self._compute_assignment = compute_assignment
        self._commits: list[tuple[list[KeyAndValue], PendingResponse, Any]] = []
        self._is_unloaded = False

    def now(self) -> Now:
        now: Now = _new_tuple(Now, (self._clock.now_ms(), int(trio.current_time() * 1000)))
        return now

    def on_loaded(self) -> None:
        self.is_loaded = True
        self._set_timers(self.shard.on_loaded(self.now()))

    def unload(self) -> None:
        """Stops coordinating these groups: all waiting requests get NOT_COORDINATOR."""
        self._is_unloaded = True
        commits, self._commits = self._commits, []
        for pending in [*(pending for _, pending, _ in commits), *self.shard.unload()]:
            pending.refuse(ErrorCode.NOT_COORDINATOR)

    # Results

    def apply(self, group_id: str, result: GroupResult) -> None:
        """Appends and replays the records of a result, then sends its responses."""
        if result.records:
            before = self.shard.hard.groups.get(group_id)
            code = self.log.append(result.records)
            if code:
                self._abandon(group_id, result, code)
                return
            _log_rebalance(group_id, before, self.shard.hard.groups.get(group_id))
        self._set_timers(result)
        if result.patterns is not None:
            self._match_patterns(self, result.patterns)
        if result.unassigned is not None:
            self._compute_assignment(self, result.unassigned)
        for pending, response in result.replies:
            self.log.answer(pending, response)

    def _abandon(self, group_id: str, result: GroupResult, code: int) -> None:
        pending_responses, again = self.shard.abandon(group_id, self.now())
        self._set_timers(again)
        for pending in [*(pending for pending, _ in result.replies), *pending_responses]:
            pending.refuse(code)

    def _set_timers(self, result: GroupResult) -> None:
        if result.wakes:
            now_ms = trio.current_time() * 1000
            for group_id, due_ms in result.wakes:
                # Plus 1 ms, because `now()` truncates to milliseconds: a group that was woken before its deadline
                # would find nothing due, ask for no other wake-up, and never wake again.
                self._timers.add(max(due_ms + 1 - now_ms, 0) / 1000, partial(self._wake, group_id))

    def _wake(self, group_id: str) -> None:
        if not self._is_unloaded:
            self.flush()
            self.apply(group_id, self.shard.wake(group_id, self.now()))

    # Commits

    def enqueue(self, records: list[KeyAndValue], pending: PendingResponse, response: Any) -> None:
        """Queues a commit, to be written in one batch with the other commits that were read together."""
        if not self._commits:
            self._flush_at_end(self.flush)
        self._commits.append((records, pending, response))

    def flush(self) -> None:
        """Writes the queued commits. Must run before any access to the shard: a client reads its own commits."""
        commits = self._commits
        if not commits:
            return
        self._commits = []
        code = self.log.append([record for records, _, _ in commits for record in records])
        for records, pending, response in commits:
            if code == ErrorCode.UNKNOWN_SERVER_ERROR:
                # One commit is too large for the log: each is written alone. Writing a commit twice is harmless.
                failed = self.log.append(records)
                failed = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if failed == code else failed
            else:
                failed = code
            if failed:
                pending.refuse(failed)
            else:
                self.log.answer(pending, response)

    # Transactions

    def commit_in_transaction(
        self, producer: tuple[int, int], records: list[KeyAndValue], pending: PendingResponse, response: Any
    ) -> None:
        """Writes offsets that take effect when the transaction commits. `producer`: its id and epoch."""
        self.flush()
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [Record(index, now_ms, key, value) for index, (key, value) in enumerate(records)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            is_transactional=True,
        )
        result = self.log.append_batch(batch, now_ms)
        if result.error == ErrorCode.MESSAGE_TOO_LARGE:
            pending.refuse(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        elif result.error:
            pending.refuse(coordinator_error(result.error))
        else:
            self.shard.hard.replay_pending(producer[0], records)
            self.log.answer(pending, response)

    def append_marker(self, batch: bytearray, producer_id: int, *, is_commit: bool) -> AppendResult:
        """Ends a transaction: its offsets take effect, or are dropped."""
        self.flush()
        result = self.log.append_batch(batch, self._clock.now_ms())
        if not result.error:
            self.shard.hard.end_transaction(producer_id, is_commit=is_commit)
        return result


def _log_rebalance(group_id: str, before: StoredGroup | None, after: StoredGroup | None) -> None:
    """Logs each new generation: many of them in a short time mean that the group has a problem."""
    if after is not None and after.generation and (before is None or before.generation != after.generation):
        fields = {"group": group_id, "generation": after.generation, "members": len(after.members)}
        if after.members:
            logger.info("Stabilized group %s generation %d with %d members", *fields.values(), extra=fields)
        else:
            logger.info("Group %s with generation %d is now empty", group_id, after.generation, extra=fields)
