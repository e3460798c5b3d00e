"""One shard over its partition: records are appended and replayed at once, answers leave when they are committed.

An append that is refused has changed nothing: the group goes back to what the log says, and everybody who waited in it
gets the error. Commits of one run of requests share a batch; anything else that asks comes after them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import trio

from kbroker.clock import Clock
from kbroker.config import TopicConfig
from kbroker.coordinator.ticket import Ticket, deliver
from kbroker.group.records import StoredGroup
from kbroker.group.shard import GroupShard
from kbroker.group.step import KeyAndValue, Now, PatternsToMatch, Step
from kbroker.log.partition_log import AppendResult
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import build_keyed_batch

__all__ = ["COMMIT_TIMEOUT_SECONDS", "CoordinatedPartition", "ShardDriver", "Timers"]

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # a third of the cost of a NamedTuple's own constructor, for every heartbeat

COMMIT_TIMEOUT_SECONDS: Final = 5.0  # offsets.commit.timeout.ms
_RECORD_OVERHEAD: Final = 32
_BATCH_OVERHEAD: Final = 256

_ANSWERS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What members are told of an append's error: things that make them look for their coordinator again."""


class Timers(Protocol):
    def add(self, seconds: float, callback: Callable[[], None]) -> Any: ...


class CoordinatedPartition(Protocol):
    """A partition as a coordinator needs it."""

    @property
    def config(self) -> TopicConfig: ...

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult: ...

    def is_committed(self, last_offset: int) -> bool: ...

    def wait_committed(self, last_offset: int, done: Callable[[int], None]) -> None: ...


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
    ) -> None:
        """`match_patterns` begins what is too much for a request; `consumer_patterns_matched` tells the shard."""
        self.partition = partition
        self.shard = shard
        self.is_loaded = False
        self._clock = clock
        self._timers = timers
        self._flush_at_end = flush_at_end
        self._match_patterns = match_patterns
        self._last_offset = -1
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

    def append(self, records: list[KeyAndValue]) -> ErrorCode:
        """Written and replayed, in as many batches as it takes."""
        now_ms = self._clock.now_ms()
        for chunk in _chunks(records, self.partition.config.max_message_bytes - _BATCH_OVERHEAD):
            result = self.partition.append_internal(build_keyed_batch(chunk, now_ms), now_ms)
            if result.error:
                return _ANSWERS.get(result.error, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._last_offset = result.last_offset
            self.shard.replay(chunk)
        return ErrorCode.NONE

    def answer(self, ticket: Ticket, response: Any) -> None:
        """As soon as all that it may be based on is committed."""
        if self._last_offset < 0 or self.partition.is_committed(self._last_offset):
            deliver(ticket, response)
        else:
            _Parked(ticket, response, self.partition, self._last_offset, self._timers)

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


def _tell_rebalance(group_id: str, before: StoredGroup | None, after: StoredGroup | None) -> None:
    """One line for each generation: a group that writes many of them is in trouble."""
    if after is not None and after.generation and (before is None or before.generation != after.generation):
        fields = {"group": group_id, "generation": after.generation, "members": len(after.members)}
        logger.info("group %s: generation %d, members: %d", *fields.values(), extra=fields)


class _Parked:
    """An answer that waits for the high watermark; after a while its client should ask elsewhere."""

    __slots__ = ("_deadline", "_response", "_ticket")

    def __init__(
        self, ticket: Ticket, response: Any, partition: CoordinatedPartition, last_offset: int, timers: Timers
    ) -> None:
        self._ticket: Ticket | None = ticket
        self._response = response
        self._deadline = timers.add(COMMIT_TIMEOUT_SECONDS, partial(self._end, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        partition.wait_committed(last_offset, self._end)

    def _end(self, code: int) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        self._deadline.cancel()
        if code:
            ticket.refuse(_ANSWERS.get(ErrorCode(code), code))
        else:
            deliver(ticket, self._response)


def _chunks(records: list[KeyAndValue], limit: int) -> Iterator[list[KeyAndValue]]:
    """At least one record each: one that is too large alone is for the log to refuse."""
    start = size = 0
    for index, (key, value) in enumerate(records):
        record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD
        if size and size + record_size > limit:
            yield records[start:index]
            start, size = index, 0
        size += record_size
    if start < len(records):
        yield records[start:]
