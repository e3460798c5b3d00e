"""ElectLeaders (43), v0-2: leadership back to the preferred replicas, or to any replica if the rest is lost.

v1: the type of election, and an error for all of it. Null asks for every partition: those where nothing was to be done
are left out of the answer then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.image import Image
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


async def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_cluster(context, request, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    if body.election_type not in (PREFERRED, UNCLEAN):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}")
    asked = body.topic_partitions
    wanted = None if asked is None else [(each.topic, index) for each in asked for index in each.partitions]
    outcomes = await context.controller.elect(wanted, is_unclean=body.election_type == UNCLEAN)
    if asked is None:
        return messages.RESPONSE(replica_election_results=_news(context.controller.image, outcomes))
    return messages.RESPONSE(
        replica_election_results=[
            _topic(each.topic, [(index, outcomes[each.topic, index]) for index in each.partitions]) for each in asked
        ]
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    asked = request.body.topic_partitions or ()
    results = [_topic(each.topic, [(index, refusal) for index in each.partitions]) for each in asked]
    return messages.RESPONSE(error_code=code, replica_election_results=results)


def _news(image: Image, outcomes: Mapping[tuple[str, int], Refusal | None]) -> list[Any]:
    """Of all partitions: those that have a new leader, or should have and have not."""
    told: dict[str, list[tuple[int, Refusal | None]]] = {name: [] for name in image.topics}
    for (name, index), outcome in outcomes.items():
        if outcome is None or outcome.code != ErrorCode.ELECTION_NOT_NEEDED:
            told.setdefault(name, []).append((index, outcome))
    return [_topic(name, results) for name, results in told.items()]


def _topic(name: str, outcomes: Sequence[tuple[int, Refusal | None]]) -> Any:
    return messages.ReplicaElectionResult(
        topic=name,
        partition_result=[
            messages.PartitionResult(partition_id=index, error_message=None)
            if outcome is None
            else messages.PartitionResult(partition_id=index, error_code=outcome.code, error_message=outcome.message)
            for index, outcome in outcomes
        ],
    )
