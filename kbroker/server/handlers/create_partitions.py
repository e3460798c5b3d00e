"""CreatePartitions (37), v0-3: adds partitions to topics, placed by the broker or as the client assigns (KIP-195).

`count` is the new total. A topic that a request names twice gets one result, an error. `validate_only` changes nothing.
A request may add 10,000 partitions in all; the topics after that are refused. Before v3, a client over its quota is
throttled but not refused (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.rules.topic_rules import MAX_PARTITIONS_AT_ONCE, too_many_partitions
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_partitions as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import TimeSlice, map_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

THROTTLING_SINCE: Final = 3

_UNAUTHORIZED: Final = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The topic authorization is failed.")
_DUPLICATE: Final = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def handle(context: Context, request: Request) -> Any:
    counts: Counter[str] = Counter()
    requested: dict[str, Any] = {}

    def count(topic: Any) -> None:
        counts[topic.name] += 1
        requested[topic.name] = topic

    await map_in_slices(context.clock, count, request.body.topics)
    if len(requested) > MAX_PARTITIONS_AT_ONCE:  # each topic would get at least one partition
        too_many = too_many_partitions()
        refused = await map_in_slices(context.clock, lambda name: _result(name, too_many), requested)
        return messages.RESPONSE(results=refused)
    results = []
    partitions_left = MAX_PARTITIONS_AT_ONCE
    time_slice = TimeSlice(context.clock)
    for name, topic in requested.items():
        refusal: Refusal | None = None
        added = _added_partitions(context, topic)
        if counts[name] > 1:
            refusal = _DUPLICATE
        elif not allows_topic(context, request, AclOperation.ALTER, name):
            refusal = _UNAUTHORIZED
        elif added > partitions_left:
            refusal = too_many_partitions()
        else:
            refusal = await _create(context, request, topic)
        if refusal is None:
            partitions_left -= added
        results.append(_result(name, refusal))
        await time_slice.checkpoint_if_over()
    return messages.RESPONSE(results=results)


def _added_partitions(context: Context, topic: Any) -> int:
    """Returns how many partitions the topic would get; 0 if it does not exist, which the controller refuses."""
    current = context.controller.image.topic(topic.name)
    return 0 if current is None else max(0, topic.count - len(current.partitions))


def refuse(request: Request, code: int, message: str | None) -> Any:
    names = dict.fromkeys(topic.name for topic in request.body.topics)
    return messages.RESPONSE(results=[_result(name, Refusal(code, message)) for name in names])


async def _create(context: Context, request: Request, topic: Any) -> Refusal | None:
    assignment = None if topic.assignments is None else [assigned.broker_ids for assigned in topic.assignments]
    create = partial(context.controller.create_partitions, topic.name, topic.count, assignment)
    try:
        if request.route.quotas is not None:
            # Validated first: partitions that cannot be created do not count against the quota.
            grown = await create(validate_only=True)
            count = len(grown.partitions) - len(context.controller.image.topics[topic.name].partitions)
            is_strict = request.version >= THROTTLING_SINCE
            throttled = request.route.quotas.mutation_refusal(request, count, is_strict=is_strict)
            if throttled is not None:
                return throttled
        await create(validate_only=request.body.validate_only)
    except Refusal as refusal:
        return refusal
    return None


def _result(name: str, refusal: Refusal | None) -> Any:
    return messages.CreatePartitionsTopicResult(name=name, **error_fields(refusal))
