"""ElectLeaders (43), v0-2: leadership back to the preferred replicas, or to any replica if the rest is lost.

A broker elects by itself whatever can be elected, so here everything is as it should be, or cannot be helped. v1: the
type of election, and an error for all of it. Null asks for every partition: only what failed is answered then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.image import Image, Partition
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import elect_leaders as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

PREFERRED: Final = 0
UNCLEAN: Final = 1

_NOT_NEEDED: Final = Refusal(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_cluster(context, request, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    if body.election_type not in (PREFERRED, UNCLEAN):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}")
    image = context.controller.image
    if body.topic_partitions is None:
        return messages.RESPONSE(replica_election_results=_failures_of_all(image, body.election_type))
    return messages.RESPONSE(
        replica_election_results=[
            _topic(each.topic, [(index, _outcome(image, each.topic, index, body)) for index in each.partitions])
            for each in body.topic_partitions
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    asked = request.body.topic_partitions or ()
    results = [_topic(each.topic, [(index, refusal) for index in each.partitions]) for each in asked]
    return messages.RESPONSE(error_code=code, replica_election_results=results)


def _outcome(image: Image, topic: str, index: int, body: Any) -> Refusal:
    if topic not in image.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    partition = image.partition(topic, index)
    if partition is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}")
    return _election(image, partition, body.election_type)


def _election(image: Image, partition: Partition, election_type: int) -> Refusal:
    has_leader = partition.leader in image.brokers
    if election_type == UNCLEAN:
        if has_leader:
            return _NOT_NEEDED
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is there to lead it.")
    if has_leader and partition.leader == partition.replicas[0]:
        return _NOT_NEEDED
    message = f"The preferred leader, broker {partition.replicas[0]}, is not there or not in sync."
    return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)


def _failures_of_all(image: Image, election_type: int) -> list[Any]:
    results = []
    for name, topic in image.topics.items():
        outcomes = enumerate(_election(image, partition, election_type) for partition in topic.partitions)
        results.append(_topic(name, [(index, outcome) for index, outcome in outcomes if outcome is not _NOT_NEEDED]))
    return results


def _topic(name: str, outcomes: list[tuple[int, Refusal]]) -> Any:
    return messages.ReplicaElectionResult(
        topic=name,
        partition_result=[
            messages.PartitionResult(partition_id=index, error_code=outcome.code, error_message=outcome.message)
            for index, outcome in outcomes
        ],
    )
