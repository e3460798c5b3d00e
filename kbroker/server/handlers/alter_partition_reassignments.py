"""AlterPartitionReassignments (45), v0-1: other replicas for partitions, or null to cancel a move under way.

One broker holds everything there is, so nothing moves: what asks for the replicas that are there is done already, what
asks for others is refused. v1: whether the number of replicas may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition_reassignments as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    body = request.body
    image = context.controller.image
    return messages.RESPONSE(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None,
        responses=[
            messages.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(each.partition_index, _refusal(image, topic.name, each.partition_index, each.replicas))
                    for each in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


def _answer(index: int, refusal: Refusal | None) -> Any:
    return messages.ReassignablePartitionResponse(
        partition_index=index,
        error_code=0 if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
    )


def _refusal(image: Image, topic: str, index: int, replicas: Sequence[int] | None) -> Refusal | None:
    if topic not in image.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    partition = image.partition(topic, index)
    if partition is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}.")
    if replicas is None:
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is in progress.")
    problem = None
    if not replicas:
        problem = "The partition is assigned to no broker."
    elif unknown := [each for each in replicas if each not in image.brokers]:
        problem = f"The partition is assigned to broker {unknown[0]}, but no such broker is registered."
    elif len(set(replicas)) < len(replicas):
        problem = f"The partition is assigned to one broker more than once: {list(replicas)}"
    elif tuple(replicas) != partition.replicas:
        problem = "Replicas cannot move between brokers here."
    return None if problem is None else Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
