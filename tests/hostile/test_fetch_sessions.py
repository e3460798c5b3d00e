"""Fetch sessions with very many partitions: what the broker keeps of them is bounded."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchTopic
from kbroker.server.requests.fetch_session import FetchSessions
from tests.server.conftest import broker, start_broker
from tests.server.handlers.harness import HandlerBroker, StillClock

__all__ = ["broker", "start_broker"]  # fixtures

FETCH = 1
LIMIT = 1000


async def fetch(broker: HandlerBroker, partitions: range, **session: Any) -> Any:
    asked = [FetchPartition(partition=index, partition_max_bytes=100) for index in partitions]
    return await broker.ask(FETCH, 11, topics=[FetchTopic(topic="unknown", partitions=asked)], **session)


async def test_unknown_partitions_in_many_sessions_are_bounded_and_every_fetch_is_answered(
    broker: HandlerBroker,
) -> None:
    ids = iter(range(1, 1000))
    sessions = FetchSessions(1000, ids.__next__, StillClock(), max_partitions=LIMIT)
    broker.context.fetch_sessions = sessions
    granted = []
    for _ in range(8):
        response = await fetch(broker, range(300), session_epoch=0)
        assert len(response.responses[0].partitions) == 300
        granted.append(response.session_id)
    assert granted == [1, 2, 3, 0, 0, 0, 0, 0]
    assert sessions.partition_count == 900
    grown = await fetch(broker, range(1000, 2000), session_id=1, session_epoch=1)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.partition_count == 600
    assert (await fetch(broker, range(5000), session_epoch=0)).session_id == 0
    assert (await fetch(broker, range(10), session_epoch=0)).session_id == 4
