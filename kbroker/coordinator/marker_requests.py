"""WriteTxnMarkers requests to other brokers: one request for all markers that wait for a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.coordinator.markers import TransactionEnd
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import write_txn_markers as messages
from kbroker.protocol.registry import api

if TYPE_CHECKING:
    from kbroker.client.connection import BrokerConnection

__all__ = ["OutgoingMarker", "fail_marker", "marker_members", "marker_results", "send_markers"]

_WRITE_TXN_MARKERS: Final = api(27)


class OutgoingMarker(NamedTuple):
    """The marker of one partition. `done` takes the leader's error code."""

    end: TransactionEnd
    partition: TopicPartition
    done: Callable[[int], None]


def fail_marker(marker: OutgoingMarker) -> None:
    marker.done(ErrorCode.NETWORK_EXCEPTION)


async def send_markers(
    connection: BrokerConnection, markers: list[OutgoingMarker], *, timeout_s: float
) -> list[OutgoingMarker]:
    """Sends the markers in one request, and completes each with its code. Returns those that need another request.

    A response names markers by producer id, so a request has one end of each producer.
    """
    ends: dict[int, TransactionEnd] = {}
    sent = [marker for marker in markers if ends.setdefault(marker.end.producer_id, marker.end) == marker.end]
    left = [marker for marker in markers if ends[marker.end.producer_id] != marker.end]
    response = await connection.send(_WRITE_TXN_MARKERS, timeout_s=timeout_s, markers=marker_members(sent))
    results = marker_results(response)
    for marker in sent:
        # A leader that leaves out a partition has not written its marker.
        code = results.get((marker.end.producer_id, *marker.partition), ErrorCode.UNKNOWN_SERVER_ERROR)
        marker.done(code)
    return left


def marker_members(markers: Iterable[OutgoingMarker]) -> list[Any]:
    """Returns the markers as in the request: grouped by transaction and by topic."""
    by_end: dict[TransactionEnd, dict[str, list[int]]] = {}
    for end, (topic, index), _ in markers:
        by_end.setdefault(end, {}).setdefault(topic, []).append(index)
    return [
        messages.WritableTxnMarker(
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            transaction_result=end.is_commit,
            coordinator_epoch=end.coordinator_epoch,
            topics=[
                messages.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ],
        )
        for end, topics in by_end.items()
    ]


def marker_results(response: Any) -> dict[tuple[int, str, int], int]:
    """Returns the error codes of a response by producer id, topic and partition."""
    return {
        (marker.producer_id, topic.name, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
