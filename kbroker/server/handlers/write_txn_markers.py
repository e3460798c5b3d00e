"""WriteTxnMarkers (27), v0-1: ends transactions in partitions of this broker, for other coordinators, and for admins
who end one that hangs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.markers import Ending
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import write_txn_markers as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    may_write = (Operation.ALTER, Operation.CLUSTER_ACTION)
    if not any(allows_cluster(context, request, each) for each in may_write):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    _Writing(context, request)


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


class _Writing:
    """All markers of a request, answered when the last is committed."""

    def __init__(self, context: Context, request: Request) -> None:
        self._request = request
        self._response = refuse(request, ErrorCode.NONE, None)
        self._left = 1  # for this loop itself
        for marker, result in zip(request.body.markers, self._response.markers, strict=True):
            ending = Ending(
                marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
            )
            for topic in result.topics:
                for answer in topic.partitions:
                    self._left += 1
                    done = partial(self._on_written, answer)
                    context.transactions.markers.append(ending, topic.name, answer.partition_index, done)
        self._count_down()

    def _on_written(self, answer: Any, code: int) -> None:
        answer.error_code = code
        self._count_down()

    def _count_down(self) -> None:
        self._left -= 1
        if not self._left:
            self._request.reply(self._response)
