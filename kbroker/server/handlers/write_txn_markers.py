"""WriteTxnMarkers (27), v0-1: writes commit or abort markers to partitions of this broker (KIP-98).

Sent by transaction coordinators, and by admin clients that abort a hanging transaction (KIP-664).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.markers import TransactionEnd
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import write_txn_markers as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.time_slice import finish_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_COORDINATOR_CODES: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER, quiet=True) and not allows_cluster(
        context, request, AclOperation.CLUSTER_ACTION
    ):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return finish_in_slices(context.clock, _MarkerWrites(context, request).steps())


def refuse(request: Request, code: int, message: str | None) -> Any:
    response = messages.RESPONSE(markers=[])
    for _ in _fill(response, request, code):
        pass
    return response


def _fill(response: Any, request: Request, code: int) -> Iterator[None]:
    """Adds a result with the code for each partition of the request. Yields after each element."""
    for marker in request.body.markers:
        topics: list[Any] = []
        response.markers.append(messages.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        for topic in marker.topics:
            partitions: list[Any] = []
            topics.append(messages.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            for index in topic.partition_indexes:
                partitions.append(messages.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
                yield
            yield
        yield


class _MarkerWrites:
    """Markers of one request; responds when the last one is committed, or after request.timeout.ms."""

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._response = messages.RESPONSE(markers=[])
        self._left = 1  # counts `steps` too: `append` may complete at once, before all markers are counted

    def steps(self) -> Generator[None, None, None]:
        """Begins to write the markers. Yields after each element."""
        context = self._context
        response = self._response
        yield from _fill(response, self._request, ErrorCode.REQUEST_TIMED_OUT)
        self._deadline = context.deadlines.add(context.config.request_timeout_ms / 1000, self._respond)
        for marker, result in zip(self._request.body.markers, response.markers, strict=True):
            ending = TransactionEnd(
                marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch
            )
            for topic in result.topics:
                for partition in topic.partitions:
                    self._left += 1
                    done = partial(self._on_written, partition)
                    context.markers.append(ending, topic.name, partition.partition_index, done)
                    yield
                yield
            yield
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
