"""DeleteTopics (20), v0-6: deletes topics by name, or by id (KIP-516).

If the config disables deletion, clients before v3 get INVALID_REQUEST, because they do not know
TOPIC_DELETION_DISABLED. A topic that is named twice, or by name and by id, is not deleted. Before v5, a client over its
quota is throttled but not refused (KIP-599). v6: topic ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.controller.image import Image, TopicImage
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_topics as messages
from kbroker.server.access.permissions import allows_topic
from kbroker.time_slice import map_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

IDS_SINCE: Final = 6
DELETION_DISABLED_SINCE: Final = 3
THROTTLING_SINCE: Final = 5


class _TopicKey(NamedTuple):
    """Topic as the client names it: a valid key has either a name or an id other than ZERO_UUID."""

    name: str | None
    topic_id: bytes


async def handle(context: Context, request: Request) -> Any:
    if not context.config.delete_topic_enable:
        if request.version < DELETION_DISABLED_SINCE:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled.")
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    counts: Counter[_TopicKey] = Counter()
    image = context.controller.image
    results: dict[_TopicKey, Any] = {}
    keys_by_id: dict[bytes, list[_TopicKey]] = {}

    def count_key(key: _TopicKey) -> None:
        counts[key] += 1

    def look_up(counted: tuple[_TopicKey, int]) -> None:
        key, count = counted
        outcome = _look_up(context, request, image, key, count)
        if isinstance(outcome, TopicImage):
            keys_by_id.setdefault(outcome.id, []).append(key)
            results[key] = _result(outcome.name, outcome.id)
        else:
            results[key] = outcome

    await map_in_slices(context.clock, count_key, _topic_keys(request))
    await map_in_slices(context.clock, look_up, counts.items())
    for keys in keys_by_id.values():
        if len(keys) > 1:
            text = "The provided topic name maps to an ID that was already supplied."
            results.update({key: _result(*key, ErrorCode.INVALID_REQUEST, text) for key in keys})
    to_delete = {topic_id: keys[0] for topic_id, keys in keys_by_id.items() if len(keys) == 1}
    if request.route.quotas is not None:
        for topic_id, key in list(to_delete.items()):
            topic = image.topics[image.topic_names_by_id[topic_id]]
            refusal = request.route.quotas.mutation_refusal(
                request, len(topic.partitions), is_strict=request.version >= THROTTLING_SINCE
            )
            if refusal is not None:
                results[key] = _result(topic.name, topic_id, refusal.code, refusal.message)
                del to_delete[topic_id]
    outcomes = await context.controller.delete_topics(list(to_delete)) if to_delete else []
    for key, outcome in zip(to_delete.values(), outcomes, strict=True):
        if isinstance(outcome, Refusal):
            # Another request deleted the topic in the meantime. A client that named it by name gets the name's error.
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key.name is not None else outcome.code
            results[key] = _result(key.name, key.topic_id, code, outcome.message)
    return messages.RESPONSE(responses=list(results.values()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(responses=[_result(*key, code, message) for key in _topic_keys(request)])


def _topic_keys(request: Request) -> Iterator[_TopicKey]:
    if request.version >= IDS_SINCE:
        return (_TopicKey(topic.name, topic.topic_id) for topic in request.body.topics)
    return (_TopicKey(name, ZERO_UUID) for name in request.body.topic_names)


def _look_up(context: Context, request: Request, image: Image, key: _TopicKey, count: int) -> TopicImage | Any:
    """Returns the topic, or the result with an error."""
    name, topic_id = key
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
        return _result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if name is None and not allows_topic(context, request, AclOperation.DESCRIBE, known_name, quiet=True):
        # Must not reveal the name of a topic id.
        return _result(None, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    if not allows_topic(context, request, AclOperation.DELETE, known_name):
        return _result(known_name, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _result(name, ZERO_UUID, code, "This server does not host this topic-partition.")
    return topic


def _result(name: str | None, topic_id: bytes, code: int = 0, message: str | None = None) -> Any:
    return messages.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
