"""Incremental fetch sessions (KIP-227): the broker keeps a client's partitions; only changes are sent either way.

    id 0, epoch -1    one fetch, no session            epoch 0     a new session (an old one with that id ends)
    id n, epoch -1    end the session n, one fetch     epoch e     the next fetch of session n

A session of a follower knows which of its partitions are quiet: the follower has everything, and was told so. Most
fetches read only the others, so that their cost does not grow with the session. The leader tells the session when a
quiet partition changes. Every half a second a fetch reads all of them, which also proves that the follower is alive.

Pure: decides which partitions to read, and which partition responses to send.

Sessions are bounded in number, and in partitions of all sessions together. A new session evicts another as in Kafka:
the least recently used one if it was not used for two minutes; any session of a consumer if the new one is of a
follower; or the smallest one, if that is older than two minutes and smaller than the new one. The last rule does not
make room for partitions: one large session must not evict many small ones. Without room a fetch gets no session, and
its client sends all partitions again each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from kbroker.clock import Clock
from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.replication.fetch_waiters import FetchWaiter

__all__ = ["MAX_PARTITIONS", "FetchSession", "FetchSessions", "FetchTarget", "QuietTarget", "TopicKey"]

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0

# Of all sessions together, unknown partitions included: about 70 MB. Kafka bounds only the number of sessions.
MAX_PARTITIONS: Final = 200_000
# Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
_EVICTION_SECONDS: Final = 120.0
# Far below replica.lag.time.max.ms: the fetch of all partitions is what keeps a follower in the ISR.
_FULL_READ_SECONDS: Final = 0.5

TopicKey = str | bytes
"""Name of a topic up to Fetch v12, its id from v13 on."""


class FetchTarget:
    """Partition that a client reads from, with the offsets of the last response that it got."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "seen_high_watermark",
        "seen_log_start_offset",
        "topic",
    )

    def __init__(self, topic: TopicKey, asked: Any) -> None:
        self.topic = topic
        self.index: int = asked.partition
        self.seen_high_watermark = -1
        self.seen_log_start_offset = -1
        self.update(asked)

    def update(self, asked: Any) -> None:
        """Sets the offsets and limits from a FetchPartition of a request."""
        self.set(
            asked.fetch_offset,
            asked.partition_max_bytes,
            asked.current_leader_epoch,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )

    def set(
        self,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
        log_start_offset: int,
    ) -> None:
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset

    def is_changed(self, answer: Any) -> bool:
        """Whether the response must include this partition. Remembers the offsets that are sent."""
        is_changed = self.is_news(answer.high_watermark, answer.log_start_offset)
        is_changed = is_changed or bool(answer.records) or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
        is_changed = is_changed or answer.preferred_read_replica >= 0
        if answer.error_code:
            # The next fetch must include this partition again, even if its high watermark has not changed.
            self.seen_high_watermark = -1
        return is_changed

    def is_news(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether one of the offsets differs from the last one that was sent. Remembers them."""
        is_news = high_watermark != self.seen_high_watermark or log_start_offset != self.seen_log_start_offset
        self.seen_high_watermark = high_watermark
        self.seen_log_start_offset = log_start_offset
        return is_news


class FetchSession:
    __slots__ = (
        "busy",
        "counted",
        "created_at",
        "epoch",
        "full_read_at",
        "id",
        "is_of_follower",
        "last_used_at",
        "targets",
        "uses_topic_ids",
        "waiter",
    )

    def __init__(
        self,
        session_id: int,
        targets: Iterable[FetchTarget],
        *,
        uses_topic_ids: bool,
        is_of_follower: bool,
        now: float,
    ) -> None:
        self.id = session_id
        self.is_of_follower = is_of_follower
        self.created_at = now
        self.last_used_at = now
        self.counted = 0  # partitions that the limit of all sessions knows of
        self.epoch = 1  # of the next request
        self.uses_topic_ids = uses_topic_ids
        self.targets: OrderedDict[tuple[TopicKey, int], FetchTarget] = OrderedDict(
            ((target.topic, target.index), target) for target in targets
        )
        self.busy: dict[FetchTarget, None] = {}
        """Partitions of a follower that are not quiet, in the order in which they are read."""
        self.full_read_at = now
        self.waiter: FetchWaiter | None = None
        """Delayed fetch of a follower."""

    def update(self, changed: Iterable[tuple[TopicKey, Any]], forgotten: Iterable[tuple[TopicKey, int]]) -> None:
        targets = self.targets
        for topic, asked in changed:
            known = targets.get((topic, asked.partition))
            if known is None:
                known = targets[topic, asked.partition] = FetchTarget(topic, asked)
            else:
                known.update(asked)
            if self.is_of_follower:
                self.busy[known] = None
        for key in forgotten:
            known = targets.pop(key, None)
            if known is not None:
                self.busy.pop(known, None)

    def begin_read(self) -> bool:
        """Whether a fetch of this follower may leave out quiet partitions. It may not twice a second."""
        if not self.is_of_follower:
            return False
        if self.last_used_at - self.full_read_at < _FULL_READ_SECONDS:
            return True
        self.full_read_at = self.last_used_at
        return False

    def move_behind(self, target: FetchTarget) -> None:
        """Moves a partition that had records behind all others, so that one busy partition cannot starve them."""
        key = (target.topic, target.index)
        if key in self.targets:
            self.targets.move_to_end(key)

    def wake(self, target: FetchTarget, size: int) -> None:
        """Notes that a quiet partition has changed, and that the follower can read `size` more bytes of it."""
        if self.targets.get((target.topic, target.index)) is target:
            self.busy[target] = None
            if size and self.waiter is not None:
                self.waiter.on_visible(size)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch >= 0x7FFFFFFF else self.epoch + 1


class QuietTarget:
    """Quiet partition of a follower's session. The leader wakes the session at the next change of the partition."""

    __slots__ = ("_session", "_target")

    def __init__(self, session: FetchSession, target: FetchTarget) -> None:
        self._session = session
        self._target = target

    @property
    def waiter(self) -> FetchWaiter | None:
        return self._session.waiter

    def on_change(self, size: int) -> None:
        self._session.wake(self._target, size)


class FetchSessions:
    def __init__(
        self, slots: int, random_int31: Callable[[], int], clock: Clock, *, max_partitions: int = MAX_PARTITIONS
    ) -> None:
        self._slots = slots
        self._random_int31 = random_int31
        self._clock = clock
        self._max_partitions = max_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used one first
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= session.counted

    def begin(
        self, size: int, targets: Callable[[], Iterable[FetchTarget]], *, uses_topic_ids: bool, is_of_follower: bool
    ) -> FetchSession | None:
        """Returns a new session of `size` partitions, or None if there is no room; `targets` is called if there is."""
        now = self._clock.monotonic()
        if not self._make_room(size, is_of_follower=is_of_follower, now=now):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random_int31()
        session = FetchSession(
            session_id, targets(), uses_topic_ids=uses_topic_ids, is_of_follower=is_of_follower, now=now
        )
        self._sessions[session_id] = session
        self._count(session)
        return session

    def find(self, session_id: int, epoch: int, *, uses_topic_ids: bool) -> FetchSession | None:
        """Returns the session whose next request this is, and changes nothing; None if `resume` returns an error."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.uses_topic_ids != uses_topic_ids:
            return None
        return session

    def resume(self, session_id: int, epoch: int, *, uses_topic_ids: bool) -> FetchSession | ErrorCode:
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._sessions.move_to_end(session_id)
        session.last_used_at = self._clock.monotonic()
        session.advance()
        return session

    def update(
        self, session: FetchSession, changed: Iterable[tuple[TopicKey, Any]], forgotten: Iterable[tuple[TopicKey, int]]
    ) -> bool:
        """Changes the partitions of the session. Ends it and returns False if there is no room for them."""
        session.update(changed, forgotten)
        self._count(session)
        while self.partition_count > self._max_partitions:
            if not self._evict_for_partitions(session.last_used_at, is_of_follower=session.is_of_follower):
                self.end(session.id)
                return False
        return session.id in self._sessions

    def _count(self, session: FetchSession) -> None:
        size = len(session.targets)
        self.partition_count += size - session.counted
        session.counted = size

    def _make_room(self, size: int, *, is_of_follower: bool, now: float) -> bool:
        if self._slots <= 0 or size > self._max_partitions:
            return False
        while self.partition_count + size > self._max_partitions:
            if not self._evict_for_partitions(now, is_of_follower=is_of_follower):
                return False
        return len(self._sessions) < self._slots or self._evict_for_slot(size, is_of_follower=is_of_follower, now=now)

    def _evict_for_partitions(self, now: float, *, is_of_follower: bool) -> bool:
        if self._evict_stale(now):
            return True
        if is_of_follower:
            for session in self._sessions.values():
                if not session.is_of_follower:
                    self.end(session.id)
                    return True
        return False

    def _evict_for_slot(self, size: int, *, is_of_follower: bool, now: float) -> bool:
        if self._evict_stale(now):
            return True
        evictable = [
            (session.is_of_follower, len(session.targets), session.id)
            for session in self._sessions.values()
            if now - session.created_at > _EVICTION_SECONDS or (is_of_follower and not session.is_of_follower)
        ]
        if not evictable or (is_of_follower, size, 0) < min(evictable):
            return False
        self.end(min(evictable)[2])
        return True

    def _evict_stale(self, now: float) -> bool:
        """Ends the least recently used session if it was not used for two minutes. Returns False if there is none."""
        for session in self._sessions.values():
            if now - session.last_used_at > _EVICTION_SECONDS:
                self.end(session.id)
                return True
            return False
        return False
