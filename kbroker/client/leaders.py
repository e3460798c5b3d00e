"""Elects the leaders of partitions (ElectLeaders)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import REQUEST_SECONDS, BrokerConnection
from kbroker.client.controller_requests import send_to_controller
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import api

__all__ = ["ElectionOutcome", "elect_leaders"]

ELECT_LEADERS: Final = api(43)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_FIRST_WITH_UNCLEAN: Final = 1
_TIMEOUT_MS: Final = 60_000


class ElectionOutcome(NamedTuple):
    topic: str
    partition: int
    error: ErrorCode
    """NONE if a leader was elected, ELECTION_NOT_NEEDED if the partition has the right leader already."""
    message: str | None


async def elect_leaders(
    cluster: Cluster, partitions: Mapping[str, Sequence[int]] | None, *, is_unclean: bool = False
) -> list[ElectionOutcome]:
    """Elects the preferred leader of each partition (None: of all); with `is_unclean`, any live replica.

    For all partitions, the broker returns only those that needed an election.
    """
    from kbroker.protocol.messages.elect_leaders import TopicPartitions

    topics = None
    if partitions is not None:
        topics = [TopicPartitions(topic=name, partitions=list(indexes)) for name, indexes in partitions.items()]

    async def send(connection: BrokerConnection) -> Any:
        return await connection.send(
            ELECT_LEADERS,
            at_least=_FIRST_WITH_UNCLEAN if is_unclean else 0,
            election_type=_UNCLEAN if is_unclean else _PREFERRED,
            topic_partitions=topics,
            timeout_ms=_TIMEOUT_MS,
            timeout_s=_TIMEOUT_MS / 1000 + REQUEST_SECONDS,
        )

    response = await send_to_controller(cluster, "election of leaders", send)
    return sorted(
        ElectionOutcome(result.topic, found.partition_id, error_code(found.error_code), found.error_message)
        for result in response.replica_election_results
        for found in result.partition_result
    )
