"""ElectLeaders (43), v0-2: elects the preferred replica as leader, or any live replica (unclean) (KIP-183, KIP-460).

v1: the election type, and a top-level error code. Null partitions mean all partitions; the response then leaves out
partitions with ELECTION_NOT_NEEDED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import elect_leaders as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.requests.error_fields import error_fields

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

PREFERRED: Final = 0
UNCLEAN: Final = 1


async def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_cluster(context, request, AclOperation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    if body.election_type not in (PREFERRED, UNCLEAN):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}")
    topics = body.topic_partitions
    partitions = None if topics is None else [(topic.topic, index) for topic in topics for index in topic.partitions]
    outcomes = await context.controller.elect(partitions, is_unclean=body.election_type == UNCLEAN)
    if topics is None:
        return messages.RESPONSE(replica_election_results=_needed_elections(context.controller.image, outcomes))
    return messages.RESPONSE(
        replica_election_results=[
            _topic(topic.topic, [(index, outcomes[topic.topic, index]) for index in topic.partitions])
            for topic in topics
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    topics = request.body.topic_partitions or ()
    results = [_topic(topic.topic, [(index, refusal) for index in topic.partitions]) for topic in topics]
    return messages.RESPONSE(error_code=code, replica_election_results=results)


def _needed_elections(image: Image, outcomes: Mapping[tuple[str, int], Refusal | None]) -> list[Any]:
    """Returns results for partitions that needed an election; every topic is listed, some without partitions."""
    needed: dict[str, list[tuple[int, Refusal | None]]] = {name: [] for name in image.topics}
    for (name, index), outcome in outcomes.items():
        if outcome is None or outcome.code != ErrorCode.ELECTION_NOT_NEEDED:
            needed.setdefault(name, []).append((index, outcome))
    return [_topic(name, results) for name, results in needed.items()]


def _topic(name: str, outcomes: Sequence[tuple[int, Refusal | None]]) -> Any:
    return messages.ReplicaElectionResult(
        topic=name,
        partition_result=[
            messages.PartitionResult(partition_id=index, **error_fields(outcome)) for index, outcome in outcomes
        ],
    )
