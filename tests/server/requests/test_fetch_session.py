"""Eviction of fetch sessions: Kafka's rules, and the limit of partitions of all sessions together."""

from __future__ import annotations

import itertools

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition
from kbroker.server.requests.fetch_session import FetchSession, FetchSessions, FetchTarget

TWO_MINUTES = 120.0


class HandClock:
    seconds = 0.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Cache:
    """Sessions with ids from 1 on, and a clock that the test moves."""

    def __init__(self, *, slots: int = 2, max_partitions: int = 1000) -> None:
        self.clock = HandClock()
        self.sessions = FetchSessions(slots, itertools.count(1).__next__, self.clock, max_partitions=max_partitions)

    def begin(self, size: int, *, is_of_follower: bool = False) -> FetchSession | None:
        return self.sessions.begin(
            size,
            lambda: [FetchTarget("t", FetchPartition(partition=index)) for index in range(size)],
            uses_topic_ids=False,
            is_of_follower=is_of_follower,
        )

    def use(self, session_id: int, epoch: int = 1) -> bool:
        return not isinstance(self.sessions.resume(session_id, epoch, uses_topic_ids=False), ErrorCode)


def test_a_new_session_does_not_evict_those_in_use() -> None:
    cache = Cache()
    assert cache.begin(5)
    assert cache.begin(5)
    assert cache.begin(100) is None
    assert cache.use(1)
    assert cache.use(2)


def test_the_least_recently_used_session_is_evicted_after_two_minutes() -> None:
    cache = Cache()
    cache.begin(5)
    cache.begin(5)
    cache.clock.seconds = 10.0
    assert cache.use(1)
    cache.clock.seconds = TWO_MINUTES + 1
    assert cache.begin(1)
    assert not cache.use(2)
    assert cache.use(1, 2)


def test_a_session_that_is_old_and_in_use_is_evicted_by_a_larger_one() -> None:
    cache = Cache()
    cache.begin(5)
    cache.begin(7)
    cache.clock.seconds = TWO_MINUTES + 1
    assert cache.use(1)
    assert cache.use(2)
    assert cache.begin(5) is None
    assert cache.begin(6)
    assert not cache.use(1, 2)
    assert cache.use(2, 2)
    assert cache.sessions.partition_count == 13


def test_a_follower_evicts_the_session_of_a_consumer_and_not_the_reverse() -> None:
    cache = Cache()
    cache.begin(5, is_of_follower=True)
    cache.begin(50)
    assert cache.begin(1, is_of_follower=True)
    assert not cache.use(2)
    assert cache.use(1)
    assert cache.begin(50, is_of_follower=True) is None
    cache.clock.seconds = TWO_MINUTES + 1
    assert cache.use(1, 2)
    assert cache.use(3)
    assert cache.begin(500) is None


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(slots=0).begin(1) is None


def test_partitions_of_all_sessions_are_limited_together() -> None:
    cache = Cache(slots=100)
    assert cache.begin(600)
    assert cache.begin(1001) is None
    assert cache.begin(401) is None
    assert cache.begin(400)
    assert cache.begin(1) is None
    assert cache.sessions.partition_count == 1000
    cache.sessions.end(1)
    cache.sessions.end(1)
    assert cache.sessions.partition_count == 400
    assert cache.begin(600)


def test_a_large_session_evicts_no_smaller_ones_that_are_in_use() -> None:
    cache = Cache(slots=100)
    for _ in range(10):
        assert cache.begin(50)
    cache.clock.seconds = TWO_MINUTES + 1
    for session_id in range(1, 6):
        assert cache.use(session_id)
    assert cache.begin(751) is None
    assert len(cache.sessions) == 5, "only those that were not used for two minutes are evicted"
    assert cache.begin(750)


def test_a_follower_gets_the_partitions_of_consumers() -> None:
    cache = Cache(slots=100)
    assert cache.begin(500)
    assert cache.begin(500)
    assert cache.begin(300, is_of_follower=True)
    assert cache.sessions.partition_count == 800


def test_a_session_that_grows_over_the_limit_is_ended() -> None:
    cache = Cache(slots=100)
    assert cache.begin(500)
    session = cache.begin(500)
    assert session is not None
    assert cache.sessions.update(session, [("t", FetchPartition(partition=7))], [("t", 8)])
    assert cache.sessions.partition_count == 999
    assert cache.sessions.update(session, [("t", FetchPartition(partition=8))], [])
    assert not cache.sessions.update(session, [("unknown", FetchPartition(partition=8))], [])
    assert not cache.use(session.id)
    assert cache.sessions.partition_count == 500
