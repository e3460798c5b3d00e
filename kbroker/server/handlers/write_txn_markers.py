"""WriteTxnMarkers (27), v0-1: writes commit or abort markers to partitions of this broker (KIP-98).

Sent by transaction coordinators, and by admin clients that abort a hanging transaction (KIP-664).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.markers import TransactionEnd
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import write_txn_markers as messages
from kbroker.server.access.authorization import AclOperation
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_COORDINATOR_CODES: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


def handle(context: Context, request: Request) -> Any:
    operations = (AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
    if not any(allows_cluster(context, request, operation) for operation in operations):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    _MarkerWrites(context, request)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        markers=[
            messages.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    messages.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            messages.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.body.markers
        ]
    )


class _MarkerWrites:
    """Markers of one request; responds when the last one is committed, or after request.timeout.ms."""

    def __init__(self, context: Context, request: Request) -> None:
        self._request = request
        self._response = refuse(request, ErrorCode.REQUEST_TIMED_OUT, None)
        self._left = 1  # counts the loop below too: `append` may complete at once, before all markers are counted
        self._deadline = context.deadlines.add(context.config.request_timeout_ms / 1000, self._respond)
        for marker, result in zip(request.body.markers, self._response.markers, strict=True):
            ending = TransactionEnd(
                marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
            )
            for topic in result.topics:
                for partition in topic.partitions:
                    self._left += 1
                    done = partial(self._on_written, partition)
                    context.markers.append(ending, topic.name, partition.partition_index, done)
        self._count_down()

    def _on_written(self, result: Any, code: int) -> None:
        # A coordinator of Apache Kafka does not know codes of group coordinators here.
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _COORDINATOR_CODES else code
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._respond()

    def _respond(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            self._deadline.cancel()
            self._request.reply(response)
