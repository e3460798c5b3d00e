"""A leader as a follower sees it: the requests Fetch and ListOffsets over one connection (Kafka's LeaderEndPoint).

Never changes a log and never retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal
from kbroker.config.broker import BrokerConfig
from kbroker.protocol.messages import fetch, list_offsets
from kbroker.protocol.registry import api
from kbroker.replication.fetching.incremental_fetch import FetchKey, FetchPosition, IncrementalFetch
from kbroker.replication.partition import Partition

__all__ = ["FetchMembers", "LeaderEndpoint"]

_FETCH: Final = api(1)
_LIST_OFFSETS: Final = api(2)
_TOPIC_IDS_SINCE: Final = 13
_EPOCHS_SINCE: Final = 4
_LATEST: Final = -1
_EARLIEST: Final = -2


FetchMembers = dict[str, Any]


class LeaderEndpoint:
    def __init__(
        self, connection: BrokerConnection, config: BrokerConfig, *, broker_id: int, broker_epoch: Callable[[], int]
    ) -> None:
        self.address = connection.address
        self._connection = connection
        self._config = config
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self.session = IncrementalFetch()

    async def fetch(self, asked: FetchMembers, go_on: Callable[[Any], FetchMembers | None]) -> Any:
        """Sends a Fetch, then those that `go_on` returns for each response. Returns the last response."""
        timeout_s = (self._config.replica_socket_timeout_ms + asked["max_wait_ms"]) / 1000
        return await self._connection.converse(_FETCH, go_on, at_least=_TOPIC_IDS_SINCE, timeout_s=timeout_s, **asked)

    def ask(self, positions: Mapping[FetchKey, FetchPosition], *, max_wait_ms: int) -> FetchMembers:
        """Returns the next Fetch of the session, for these partitions."""
        changed, forgotten = self.session.next(positions)
        return self._members(changed, forgotten, max_wait_ms)

    def ask_again(self, positions: Mapping[FetchKey, FetchPosition], *, max_wait_ms: int) -> FetchMembers:
        """Like `ask`, for the partitions of the last fetch, of which only these may have another position."""
        return self._members(self.session.next_of(positions), [], max_wait_ms)

    def _members(
        self, changed: Mapping[FetchKey, FetchPosition], forgotten: Iterable[FetchKey], max_wait_ms: int
    ) -> FetchMembers:
        config, session = self._config, self.session
        topics: dict[bytes, Any] = {}
        for (topic_id, index), position in changed.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = fetch.FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        return {
            "replica_id": self._broker_id,
            "replica_state": fetch.ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            "max_wait_ms": max_wait_ms,
            "min_bytes": config.replica_fetch_min_bytes,
            "max_bytes": config.replica_fetch_response_max_bytes,
            "session_id": session.session_id,
            "session_epoch": session.epoch,
            "topics": list(topics.values()),
            "forgotten_topics_data": [
                fetch.ForgottenTopic(topic_id=topic_id, partitions=[index]) for topic_id, index in forgotten
            ],
        }

    async def end_offset(self, partition: Partition) -> int:
        """Returns the leader's log end offset. Raises BrokerRefusal if it does not lead any more."""
        return await self._offset(partition, _LATEST)

    async def start_offset(self, partition: Partition) -> int:
        """Returns the leader's log start offset. Raises BrokerRefusal if it does not lead any more."""
        return await self._offset(partition, _EARLIEST)

    async def _offset(self, partition: Partition, timestamp: int) -> int:
        requested = list_offsets.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
        )
        response = await self._connection.send(
            _LIST_OFFSETS,
            at_least=_EPOCHS_SINCE,
            timeout_s=self._config.replica_socket_timeout_ms / 1000,
            replica_id=self._broker_id,
            topics=[list_offsets.ListOffsetsTopic(name=partition.topic, partitions=[requested])],
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, f"{partition.topic}-{partition.index}")
        offset: int = answer.offset
        return offset
