"""CreatePartitions (37), v0-3: more partitions for topics, placed by the broker or as assigned; or just a check.

The count is that of all partitions, old and new. A topic that a request holds twice is refused once.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_partitions as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

THROTTLING_SINCE: Final = 3

_UNAUTHORIZED: Final = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
_DUPLICATE: Final = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def handle(context: Context, request: Request) -> Any:
    counts = Counter(each.name for each in request.body.topics)
    results = []
    for each in {topic.name: topic for topic in request.body.topics}.values():
        refusal: Refusal | None = None
        if counts[each.name] > 1:
            refusal = _DUPLICATE
        elif not allows_topic(context, request, Operation.ALTER, each.name):
            refusal = _UNAUTHORIZED
        else:
            refusal = await _create(context, request, each)
        results.append(_result(each.name, refusal))
    return messages.RESPONSE(results=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    names = dict.fromkeys(each.name for each in request.body.topics)
    return messages.RESPONSE(results=[_result(name, Refusal(code, message)) for name in names])


async def _create(context: Context, request: Request, each: Any) -> Refusal | None:
    assignment = None if each.assignments is None else [assigned.broker_ids for assigned in each.assignments]
    create = partial(context.controller.create_partitions, each.name, each.count, assignment)
    try:
        if request.route.quotas is not None:
            grown = await create(validate_only=True)
            count = len(grown.partitions) - len(context.controller.image.topics[each.name].partitions)
            is_strict = request.version >= THROTTLING_SINCE
            throttled = request.route.quotas.mutation_refusal(request, count, is_strict=is_strict)
            if throttled is not None:
                return throttled
        await create(validate_only=request.body.validate_only)
    except Refusal as refusal:
        return refusal
    return None


def _result(name: str, refusal: Refusal | None) -> Any:
    if refusal is None:
        return messages.CreatePartitionsTopicResult(name=name)
    return messages.CreatePartitionsTopicResult(name=name, error_code=refusal.code, error_message=refusal.message)
