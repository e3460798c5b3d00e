"""AlterPartitionReassignments (45), v0-1: assigns other replicas to partitions; null cancels a reassignment (KIP-455).

The response does not wait for the new replicas. v1: `allow_replication_factor_change`, which is returned as sent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition_reassignments as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import run_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    body, clock = request.body, context.clock
    wanted = await run_in_slices(clock, _wanted(body))
    outcomes = await context.controller.reassign(wanted, may_change_factor=body.allow_replication_factor_change)
    return messages.RESPONSE(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None,
        responses=await run_in_slices(clock, _results(body, outcomes)),
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    responses = [
        messages.ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                messages.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=code, error_message=message
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.body.topics
    ]
    return messages.RESPONSE(error_code=code, error_message=message, responses=responses)


def _wanted(body: Any) -> Generator[None, None, dict[tuple[str, int], list[int] | None]]:
    wanted = {}
    for topic in body.topics:
        for partition in topic.partitions:
            wanted[topic.name, partition.partition_index] = partition.replicas
            yield
        yield
    return wanted


def _results(body: Any, outcomes: Mapping[tuple[str, int], Refusal | None]) -> Generator[None, None, list[Any]]:
    responses = []
    for topic in body.topics:
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            fields = error_fields(outcomes[topic.name, index])
            results.append(messages.ReassignablePartitionResponse(partition_index=index, **fields))
            yield
        responses.append(messages.ReassignableTopicResponse(name=topic.name, partitions=results))
        yield
    return responses
