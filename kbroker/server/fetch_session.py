"""Incremental fetch sessions (KIP-227): what a client asked for stays here, so that it only sends and receives changes.

    id 0, epoch -1    one fetch, no session            epoch 0     a new session (an old one with that id ends)
    id n, epoch -1    end the session n, one fetch     epoch e     the next fetch of session n

Pure: which partitions to read, and which answers a client needs to see. Sessions that were not used for longest make
room for new ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from kbroker.protocol.error_codes import ErrorCode

__all__ = ["FetchSession", "FetchSessions", "FetchTarget", "TopicKey"]

FINAL_EPOCH = -1
INITIAL_EPOCH = 0

TopicKey = str | bytes
"""A topic's name up to Fetch v12, its id from v13 on."""


class FetchTarget:
    """One partition that a client reads from, and what it was told of it last."""

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
        """`asked`: a FetchPartition of the request."""
        self.fetch_offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.current_leader_epoch: int = asked.current_leader_epoch
        self.last_fetched_epoch: int = asked.last_fetched_epoch
        self.log_start_offset: int = asked.log_start_offset

    def has_news(self, answer: Any) -> bool:
        """Whether the client must see this answer; remembers what it will have seen."""
        news = bool(answer.records) or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
        if answer.high_watermark != self.seen_high_watermark:
            self.seen_high_watermark = answer.high_watermark
            news = True
        if answer.log_start_offset != self.seen_log_start_offset:
            self.seen_log_start_offset = answer.log_start_offset
            news = True
        if answer.error_code:
            # Repeat an error at the next fetch, whatever its watermark then is.
            self.seen_high_watermark = -1
        return news


class FetchSession:
    __slots__ = ("epoch", "id", "targets", "uses_topic_ids")

    def __init__(self, session_id: int, targets: Iterable[FetchTarget], *, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = 1  # that of the next request
        self.uses_topic_ids = uses_topic_ids
        self.targets: OrderedDict[tuple[TopicKey, int], FetchTarget] = OrderedDict(
            ((target.topic, target.index), target) for target in targets
        )

    def update(self, changed: Iterable[tuple[TopicKey, Any]], forgotten: Iterable[tuple[TopicKey, int]]) -> None:
        targets = self.targets
        for topic, asked in changed:
            known = targets.get((topic, asked.partition))
            if known is None:
                targets[topic, asked.partition] = FetchTarget(topic, asked)
            else:
                known.update(asked)
        for key in forgotten:
            targets.pop(key, None)

    def move_behind(self, target: FetchTarget) -> None:
        """It had its turn: the others come first next time, so that one busy partition cannot starve them."""
        key = (target.topic, target.index)
        if key in self.targets:
            self.targets.move_to_end(key)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch >= 0x7FFFFFFF else self.epoch + 1


class FetchSessions:
    def __init__(self, slots: int, random_int31: Callable[[], int]) -> None:
        self._slots = slots
        self._random_int31 = random_int31
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def begin(self, targets: Iterable[FetchTarget], *, uses_topic_ids: bool) -> FetchSession | None:
        if self._slots <= 0:
            return None
        if len(self._sessions) >= self._slots:
            self._sessions.popitem(last=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random_int31()
        session = FetchSession(session_id, targets, uses_topic_ids=uses_topic_ids)
        self._sessions[session_id] = session
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
        session.advance()
        return session
