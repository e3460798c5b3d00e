"""ListPartitionReassignments (46), v0: lists ongoing reassignments of replicas; null topics mean all (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kbroker.controller.image import Image, PartitionState
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_partition_reassignments as messages
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    topics: dict[str, list[Any]] = {}
    for name, index, partition in _requested(context.controller.image, request.body.topics):
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
        topics=[
            messages.OngoingTopicReassignment(name=name, partitions=partitions) for name, partitions in topics.items()
        ],
    )


def _requested(image: Image, topics: Iterable[Any] | None) -> Iterable[tuple[str, int, PartitionState]]:
    if topics is None:
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield topic.name, index, partition
        return
    for requested in topics:
        for index in requested.partition_indexes:
            found = image.partition(requested.name, index)
            if found is not None:
                yield requested.name, index, found
