"""CreateTopics (19), v0-7: new topics, with counts or an assignment of replicas; v1: or just a check.

A topic has its leader, and its log is open, when the answer leaves. v5: partitions, replicas and every config as they
came out, if the client may see configs. v7: the topic's id. A name that a request holds twice is refused once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.config import describe_topic_configs
from kbroker.controller.image import Topic
from kbroker.controller.topic_rules import NewTopic
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster, allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

CONFIGS_SINCE: Final = 5
THROTTLING_SINCE: Final = 6

# The topic in which a KRaft cluster keeps its metadata. There is none here, but nobody shall believe there were.
_CLUSTER_METADATA: Final = "__cluster_metadata"

_UNAUTHORIZED: Final = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")


async def handle(context: Context, request: Request) -> Any:
    body = request.body
    counts = Counter(each.name for each in body.topics)
    wished = {each.name: each for each in body.topics}
    may_create_all = allows_cluster(context, request, Operation.CREATE)
    results: dict[str, Any] = {}
    wishes: list[NewTopic] = []
    for name, each in wished.items():
        problem = _problem(each, counts[name]) or (
            None if may_create_all or allows_topic(context, request, Operation.CREATE, name) else _UNAUTHORIZED
        )
        if problem is None:
            wishes.append(_wish(each))
        else:
            results[name] = _refused(name, problem)
    if wishes and request.route.quotas is not None:
        throttled = await _throttled(context, request, wishes)
        results.update((name, _refused(name, refusal)) for name, refusal in throttled.items())
        wishes = [wish for wish in wishes if wish.name not in throttled]
    outcomes = await context.controller.create_topics(wishes, validate_only=body.validate_only) if wishes else []
    for wish, outcome in zip(wishes, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            results[wish.name] = _refused(wish.name, outcome)
        else:
            results[wish.name] = _created(context, request, outcome)
    return messages.RESPONSE(topics=[results[name] for name in wished])


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    names = dict.fromkeys(each.name for each in request.body.topics)
    return messages.RESPONSE(topics=[_refused(name, refusal) for name in names])


async def _throttled(context: Context, request: Request, wishes: Sequence[NewTopic]) -> dict[str, Refusal]:
    """Those that must not be created now. What could not be created at all costs nothing."""
    quotas = request.route.quotas
    assert quotas is not None
    is_strict = request.version >= THROTTLING_SINCE
    refusals = {}
    for outcome in await context.controller.create_topics(wishes, validate_only=True):
        if isinstance(outcome, Topic):
            refusal = quotas.mutation_refusal(request, len(outcome.partitions), is_strict=is_strict)
            if refusal is not None:
                refusals[outcome.name] = refusal
    return refusals


def _problem(each: Any, count: int) -> Refusal | None:
    """What is wrong with the request itself; whether the topic may be is the controller's to say."""
    if count > 1:
        return Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if each.name == _CLUSTER_METADATA:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {_CLUSTER_METADATA} is prohibited.")
    if without_value := [config.name for config in each.configs if config.value is None]:
        return Refusal(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(without_value)}"
        )
    partitions = Counter(assigned.partition_index for assigned in each.assignments)
    if repeated := [index for index, times in partitions.items() if times > 1]:
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {repeated[0]} is assigned more than once.")
    return None


def _wish(each: Any) -> NewTopic:
    return NewTopic(
        each.name,
        partitions=each.num_partitions,
        replication_factor=each.replication_factor,
        assignment={assigned.partition_index: assigned.broker_ids for assigned in each.assignments} or None,
        configs={config.name: config.value for config in each.configs},
    )


def _refused(name: str, refusal: Refusal) -> Any:
    return messages.CreatableTopicResult(name=name, error_code=refusal.code, error_message=refusal.message)


def _created(context: Context, request: Request, topic: Topic) -> Any:
    # `configs` is at least an empty list: Java's admin client does not survive a null.
    result = messages.CreatableTopicResult(name=topic.name, topic_id=topic.id, error_message=None)
    if request.version < CONFIGS_SINCE:
        return result
    if not allows_topic(context, request, Operation.DESCRIBE_CONFIGS, topic.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    result.num_partitions = len(topic.partitions)
    result.replication_factor = topic.replication_factor
    result.configs = [
        messages.CreatableTopicConfigs(
            name=entry.name,
            value=None if entry.is_sensitive else entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in describe_topic_configs(context.config, topic.configs)
    ]
    return result
