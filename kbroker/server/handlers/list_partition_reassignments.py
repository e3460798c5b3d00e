"""ListPartitionReassignments (46), v0: moves of replicas between brokers that are under way; null asks for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.controller.image import Image, Partition
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_partition_reassignments as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    topics: dict[str, list[Any]] = {}
    for name, index, partition in _asked(context.controller.image, request.body.topics):
        if partition.adding_replicas or partition.removing_replicas:
            topics.setdefault(name, []).append(
                messages.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=partition.replicas,
                    adding_replicas=partition.adding_replicas,
                    removing_replicas=partition.removing_replicas,
                )
            )
    return messages.RESPONSE(
        error_message=None,
        topics=[messages.OngoingTopicReassignment(name=name, partitions=each) for name, each in topics.items()],
    )


def _asked(image: Image, topics: Iterable[Any] | None) -> Iterable[tuple[str, int, Partition]]:
    if topics is None:
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield topic.name, index, partition
        return
    for each in topics:
        for index in each.partition_indexes:
            found = image.partition(each.name, index)
            if found is not None:
                yield each.name, index, found
