"""DeleteTopics (20), v0-6: topics that shall go, by name, or from v6 on by id.

Where the config forbids deletion, clients before v3 are told INVALID_REQUEST: they do not know the right code. A topic
that is named twice, or by its name and by its id, is left alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.controller.image import Image, Topic
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_topics as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

IDS_SINCE: Final = 6
DELETION_DISABLED_SINCE: Final = 3
THROTTLING_SINCE: Final = 5


class _Wanted(NamedTuple):
    """A topic as the client names it: by one of the two, or wrongly by both or none."""

    name: str | None
    topic_id: bytes


async def handle(context: Context, request: Request) -> Any:
    if not context.config.delete_topic_enable:
        if request.version < DELETION_DISABLED_SINCE:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled.")
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    counts = Counter(_wanted(request))
    image = context.controller.image
    results: dict[_Wanted, Any] = {}
    doomed: dict[bytes, list[_Wanted]] = {}
    for wanted, count in counts.items():
        outcome = _look_up(context, request, image, wanted, count)
        if isinstance(outcome, Topic):
            doomed.setdefault(outcome.id, []).append(wanted)
            results[wanted] = _result(outcome.name, outcome.id)
        else:
            results[wanted] = outcome
    for by in doomed.values():
        if len(by) > 1:
            text = "The provided topic name maps to an ID that was already supplied."
            results.update({each: _result(*each, ErrorCode.INVALID_REQUEST, text) for each in by})
    single = {topic_id: by[0] for topic_id, by in doomed.items() if len(by) == 1}
    if request.route.quotas is not None:
        for topic_id, wanted in list(single.items()):
            topic = image.topics[image.topic_names_by_id[topic_id]]
            refusal = request.route.quotas.mutation_refusal(
                request, len(topic.partitions), is_strict=request.version >= THROTTLING_SINCE
            )
            if refusal is not None:
                results[wanted] = _result(topic.name, topic_id, refusal.code, refusal.message)
                del single[topic_id]
    outcomes = await context.controller.delete_topics(list(single)) if single else []
    for wanted, outcome in zip(single.values(), outcomes, strict=True):
        if isinstance(outcome, Refusal):
            # Somebody else was quicker: by name it is an unknown name.
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if wanted.name is not None else outcome.code
            results[wanted] = _result(wanted.name, wanted.topic_id, code, outcome.message)
    return messages.RESPONSE(responses=list(results.values()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(responses=[_result(each.name, each.topic_id, code, message) for each in _wanted(request)])


def _wanted(request: Request) -> list[_Wanted]:
    if request.version >= IDS_SINCE:
        return [_Wanted(each.name, each.topic_id) for each in request.body.topics]
    return [_Wanted(name, ZERO_UUID) for name in request.body.topic_names]


def _look_up(context: Context, request: Request, image: Image, wanted: _Wanted, count: int) -> Topic | Any:
    """The topic, or the result that refuses it."""
    name, topic_id = wanted
    if name is None and topic_id == ZERO_UUID:
        return _result(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != ZERO_UUID:
        return _result(name, topic_id, ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if count > 1:
        kind = "id" if name is None else "name"
        return _result(name, topic_id, ErrorCode.INVALID_REQUEST, f"Duplicate topic {kind}.")
    topic = image.topic(name) if name is not None else image.topic_by_id(topic_id)
    known_name = topic.name if topic is not None else name
    if known_name is None:
        return _result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    if not allows_topic(context, request, Operation.DESCRIBE, known_name):
        return _result(name, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)  # by id, the name is not told
    if topic is None:
        return _result(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no topic of this name.")
    if not allows_topic(context, request, Operation.DELETE, known_name):
        return _result(known_name, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return topic


def _result(name: str | None, topic_id: bytes, code: int = 0, message: str | None = None) -> Any:
    return messages.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
