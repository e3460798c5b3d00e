"""AlterPartitionReassignments (45), v0-1: assigns other replicas to partitions; null cancels a reassignment (KIP-455).

Reassignment between brokers is not supported: a request for the current replicas succeeds without change, a request for
others is refused. v1: `allow_replication_factor_change`, which is returned as it was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition_reassignments as messages
from kbroker.server.access.authorization import AclOperation
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.requests.error_fields import error_fields

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    body = request.body
    image = context.controller.image
    return messages.RESPONSE(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None,
        responses=[
            messages.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    messages.ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        **error_fields(_refusal(image, topic.name, partition.partition_index, partition.replicas)),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


def _refusal(image: Image, topic: str, index: int, replicas: Sequence[int] | None) -> Refusal | None:
    if topic not in image.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    partition = image.partition(topic, index)
    if partition is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}.")
    if replicas is None:
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    problem = None
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    elif unknown := [broker_id for broker_id in replicas if broker_id not in image.brokers]:
        problem = f"The manual partition assignment includes broker {unknown[0]}, but no such broker is registered."
    elif repeated := [broker_id for broker_id, count in Counter(replicas).items() if count > 1]:
        problem = f"The manual partition assignment includes the broker {repeated[0]} more than once."
    elif tuple(replicas) != partition.replicas:
        problem = "Reassigning replicas to other brokers is not supported."
    return None if problem is None else Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
