"""One shard over its partition: records are appended and replayed at once, answers leave when they are committed.

An append that is refused has changed nothing: the group goes back to what the log says, and everybody who waited in it
gets the error. Commits of one run of requests share a batch; anything else that asks comes after them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from kbroker.clock import Clock
from kbroker.coordinator.shard_log import CoordinatedPartition, ShardLog, Timers, answer_to
from kbroker.coordinator.ticket import Ticket
from kbroker.group.records import StoredGroup
from kbroker.group.shard import GroupShard
from kbroker.group.step import KeyAndValue, Now, PatternsToMatch, Step
from kbroker.log.partition_log import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import Record, build_batch

__all__ = ["ShardDriver"]

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the cost of a NamedTuple's own constructor, for every heartbeat


class ShardDriver(ShardLog):
    def __init__(
        self,
        partition: CoordinatedPartition,
        shard: GroupShard,
        *,
        clock: Clock,
        timers: Timers,
        flush_at_end: Callable[[Callable[[], None]], None],
        match_patterns: Callable[[ShardDriver, PatternsToMatch], None] = lambda driver, patterns: None,
    ) -> None:
        """`match_patterns` begins what is too much for a request; `consumer_patterns_matched` tells the shard."""
        super().__init__(partition, shard.replay, clock=clock, timers=timers)
        self.shard = shard
        self.is_loaded = False
        self._flush_at_end = flush_at_end
        self._match_patterns = match_patterns
        self._commits: list[tuple[list[KeyAndValue], Ticket, Any]] = []
        self._is_gone = False

    def now(self) -> Now:
        now: Now = _new_tuple(Now, (self._clock.now_ms(), int(trio.current_time() * 1000)))
        return now

    def on_loaded(self) -> None:
        self.is_loaded = True
        self._watch(self.shard.on_loaded(self.now()))

    def leave(self) -> None:
        """Somebody else coordinates from here on."""
        self._is_gone = True
        commits, self._commits = self._commits, []
        for ticket in [*(each[1] for each in commits), *self.shard.unload()]:
            ticket.refuse(ErrorCode.NOT_COORDINATOR)

    # Steps

    def take(self, group_id: str, step: Step) -> None:
        """Append, replay, answer."""
        if step.records:
            before = self.shard.hard.groups.get(group_id)
            code = self.append(step.records)
            if code:
                self._abandon(group_id, step, code)
                return
            _tell_rebalance(group_id, before, self.shard.hard.groups.get(group_id))
        self._watch(step)
        if step.patterns is not None:
            self._match_patterns(self, step.patterns)
        for ticket, response in step.replies:
            self.answer(ticket, response)

    def _abandon(self, group_id: str, step: Step, code: int) -> None:
        tickets, again = self.shard.abandon(group_id, self.now())
        self._watch(again)
        for ticket in [*(each[0] for each in step.replies), *tickets]:
            ticket.refuse(code)

    def _watch(self, step: Step) -> None:
        if step.wakes:
            now_ms = trio.current_time() * 1000
            for group_id, due_ms in step.wakes:
                # One more, for times are cut to milliseconds: a group that is woken too early would sleep for ever.
                self._timers.add(max(due_ms + 1 - now_ms, 0) / 1000, partial(self._wake, group_id))

    def _wake(self, group_id: str) -> None:
        if not self._is_gone:
            self.flush()
            self.take(group_id, self.shard.wake(group_id, self.now()))

    # Commits

    def enqueue(self, records: list[KeyAndValue], ticket: Ticket, response: Any) -> None:
        """To be written with the others of this run."""
        if not self._commits:
            self._flush_at_end(self.flush)
        self._commits.append((records, ticket, response))

    def flush(self) -> None:
        """Before anything else that looks at the shard, so that a client sees what it sent before."""
        commits = self._commits
        if not commits:
            return
        self._commits = []
        code = self.append([record for records, _, _ in commits for record in records])
        for records, ticket, response in commits:
            if code == ErrorCode.UNKNOWN_SERVER_ERROR:
                # One of them is too large for the log. To write a commit twice does no harm.
                failed = self.append(records)
                failed = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if failed == code else failed
            else:
                failed = code
            if failed:
                ticket.refuse(failed)
            else:
                self.answer(ticket, response)

    # Transactions

    def commit_in_transaction(
        self, producer: tuple[int, int], records: list[KeyAndValue], ticket: Ticket, response: Any
    ) -> None:
        """Offsets that count when the marker comes. `producer`: its id and epoch."""
        self.flush()
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [Record(index, now_ms, key, value) for index, (key, value) in enumerate(records)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            is_transactional=True,
        )
        result = self.partition.append_internal(batch, now_ms)
        if result.error == ErrorCode.MESSAGE_TOO_LARGE:
            ticket.refuse(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        elif result.error:
            ticket.refuse(answer_to(result.error))
        else:
            self._last_offset = result.last_offset
            self.shard.hard.replay_pending(producer[0], records)
            self.answer(ticket, response)

    def append_marker(self, batch: bytearray, producer_id: int, *, is_commit: bool) -> AppendResult:
        """The end of a transaction: its offsets count from here on, or are forgotten."""
        self.flush()
        result = self.partition.append_internal(batch, self._clock.now_ms())
        if not result.error:
            self._last_offset = result.last_offset
            self.shard.hard.end_transaction(producer_id, is_commit=is_commit)
        return result


def _tell_rebalance(group_id: str, before: StoredGroup | None, after: StoredGroup | None) -> None:
    """One line for each generation: a group that writes many of them is in trouble."""
    if after is not None and after.generation and (before is None or before.generation != after.generation):
        fields = {"group": group_id, "generation": after.generation, "members": len(after.members)}
        logger.info("group %s: generation %d, members: %d", *fields.values(), extra=fields)
