"""Producers of partitions and their open transactions: finds transactions that hang, and aborts them.

A transaction hangs if its coordinator does not know it: no client can end it, and read_committed consumers wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.client.admin.transactions import describe_transaction, list_transactions
from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["ActiveProducer", "abort_hanging", "describe_producers", "find_hanging"]

WRITE_TXN_MARKERS: Final = api(27)
DESCRIBE_PRODUCERS: Final = api(61)


class ActiveProducer(NamedTuple):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """Timestamp of its last batch, in ms since 1970; -1 if it is not known."""
    coordinator_epoch: int
    start_offset: int
    """First offset of its open transaction; -1 if none is open."""


async def describe_producers(
    cluster: Cluster, topic: TopicInfo, partitions: Sequence[int] = ()
) -> list[ActiveProducer]:
    """Returns the producers that the leaders of the partitions (none given: of all) remember."""
    from kbroker.protocol.messages.describe_producers import TopicRequest

    async def send(
        connection: BrokerConnection, _topic: TopicInfo, wanted: Mapping[int, None]
    ) -> dict[int, BrokerResponse]:
        response = await connection.send(
            DESCRIBE_PRODUCERS, topics=[TopicRequest(name=topic.name, partition_indexes=list(wanted))]
        )
        return {
            partition.partition_index: BrokerResponse(partition.error_code, partition, partition.error_message)
            for topic_response in response.topics
            for partition in topic_response.partitions
        }

    numbers = [topic.partition(number).number for number in partitions] or [
        partition.number for partition in topic.partitions
    ]
    found = await cluster.send_to_leaders(topic.name, dict.fromkeys(numbers), send)
    return sorted(_producer(topic.name, state, index) for index in found for state in found[index].active_producers)


def _producer(topic: str, state: Any, partition: int) -> ActiveProducer:
    return ActiveProducer(
        topic,
        partition,
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )


async def find_hanging(cluster: Cluster, topics: Sequence[TopicInfo], *, before_ms: int) -> list[ActiveProducer]:
    """Returns the producers with a hanging transaction whose last batch is older than `before_ms`."""
    suspects = [
        producer
        for topic in topics
        for producer in await describe_producers(cluster, topic)
        if producer.start_offset >= 0 and producer.last_timestamp < before_ms
    ]
    if not suspects:
        return []
    names = {transaction.producer_id: transaction.transactional_id for transaction in await list_transactions(cluster)}
    return [
        producer for producer in suspects if not await _is_known(cluster, producer, names.get(producer.producer_id))
    ]


async def _is_known(cluster: Cluster, producer: ActiveProducer, transactional_id: str | None) -> bool:
    """Whether the coordinator has the partition in the transaction, and will end it."""
    if transactional_id is None:
        return False
    found = await describe_transaction(cluster, transactional_id)
    return producer.partition in found.partitions.get(producer.topic, ())


async def abort_hanging(cluster: Cluster, topic: TopicInfo, partition: int, *, start_offset: int) -> ActiveProducer:
    """Writes an abort marker for the transaction that begins at an offset. Returns its producer."""
    from kbroker.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic

    for producer in await describe_producers(cluster, topic, [partition]):
        if producer.start_offset == start_offset:
            break
    else:
        raise UserError(f"No open transaction of {topic.name}-{partition} begins at offset {start_offset}.")
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic.name, partition_indexes=[partition])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    connection = await cluster.broker_connection(topic.partition(partition).leader)
    response = await connection.send(WRITE_TXN_MARKERS, markers=[marker])
    code = response.markers[0].topics[0].partitions[0].error_code
    if code != ErrorCode.NONE:
        raise BrokerRefusal(code, f"transaction of {topic.name}-{partition}")
    return producer
