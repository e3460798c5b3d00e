"""Deletes the records of partitions up to an offset (DeleteRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import REQUEST_SECONDS, BrokerConnection
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["HIGH_WATERMARK", "delete_records"]

DELETE_RECORDS: Final = api(21)

HIGH_WATERMARK: Final = -1
"""Offset that deletes all committed records."""

_TIMEOUT_MS: Final = 30_000
_MESSAGES: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE.value: "The requested offset is not within the range of offsets maintained by the "
    "server."
}
"""Kafka's sentence for an error code, which the response does not have."""


async def delete_records(cluster: Cluster, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """Deletes the records before the offset of each partition. Returns partition -> first offset that is left."""
    from kbroker.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsTopic

    async def send(
        connection: BrokerConnection, _topic: TopicInfo, wanted: Mapping[int, int]
    ) -> dict[int, BrokerResponse]:
        partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted.items()]
        response = await connection.send(
            DELETE_RECORDS,
            topics=[DeleteRecordsTopic(name=topic, partitions=partitions)],
            timeout_ms=_TIMEOUT_MS,
            timeout_s=_TIMEOUT_MS / 1000 + REQUEST_SECONDS,
        )
        return {
            partition.partition_index: BrokerResponse(
                partition.error_code, partition.low_watermark, _MESSAGES.get(partition.error_code)
            )
            for topic_response in response.topics
            for partition in topic_response.partitions
        }

    return await cluster.send_to_leaders(topic, offsets, send)
