"""CreateTopics (19), v0-7: creates topics with a number of partitions or an assignment of replicas (KIP-4).

Responds when each new topic has leaders and open logs. v1: `validate_only` creates nothing. v5: the response has the
topic's partition count, replication factor and configs, if the client may describe configs (KIP-525). v7: the topic's
id (KIP-516). A topic that a request names twice gets one result, an error. A request for more than 10,000 partitions in
all is refused, as in Kafka. Before v6, a client over its quota is throttled but not refused (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.config.describe import describe_topic_configs
from kbroker.controller.image import TopicImage
from kbroker.controller.rules.topic_rules import DEFAULT, MAX_PARTITIONS_AT_ONCE, NewTopic, too_many_partitions
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics as messages
from kbroker.server.access.permissions import allows_cluster, allows_topic
from kbroker.time_slice import map_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

CONFIGS_SINCE: Final = 5
THROTTLING_SINCE: Final = 6

# Reserved by KRaft for its metadata log.
_CLUSTER_METADATA: Final = "__cluster_metadata"

_UNAUTHORIZED: Final = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")


async def handle(context: Context, request: Request) -> Any:
    body, clock = request.body, context.clock
    counts: Counter[str] = Counter()
    requested: dict[str, Any] = {}

    def count(topic: Any) -> None:
        counts[topic.name] += 1
        requested[topic.name] = topic

    await map_in_slices(clock, count, body.topics)
    may_create_all = allows_cluster(context, request, AclOperation.CREATE, quiet=True)
    results: dict[str, Any] = {}
    new_topics: list[NewTopic] = []
    partition_count = 0

    def check(topic: Any) -> None:
        nonlocal partition_count
        name = topic.name
        if len(topic.assignments) > MAX_PARTITIONS_AT_ONCE:
            partition_count += len(topic.assignments)
        if partition_count > MAX_PARTITIONS_AT_ONCE:
            return  # the whole request is refused
        problem = _name_problem(name, counts[name])
        if problem is None and not may_create_all and not allows_topic(context, request, AclOperation.CREATE, name):
            problem = _UNAUTHORIZED
        problem = problem or _problem(topic)
        if problem is None:
            new_topics.append(_new_topic(topic))
            partition_count += _partition_count(context, new_topics[-1])
        else:
            results[name] = _refused(name, problem)

    await map_in_slices(clock, check, requested.values())
    if partition_count > MAX_PARTITIONS_AT_ONCE:
        refusal = too_many_partitions()
        refused = await map_in_slices(clock, lambda name: _refused(name, refusal), requested)
        return messages.RESPONSE(topics=refused)
    if new_topics and request.route.quotas is not None:
        throttled = await _throttled(context, request, new_topics)
        results.update((name, _refused(name, refusal)) for name, refusal in throttled.items())
        new_topics = [topic for topic in new_topics if topic.name not in throttled]
    outcomes: Sequence[TopicImage | Refusal] = ()
    if new_topics:
        outcomes = await context.controller.create_topics(new_topics, validate_only=body.validate_only)
    created = _Created(context, request)

    def add_result(outcome: tuple[NewTopic, TopicImage | Refusal]) -> None:
        new, topic = outcome
        results[new.name] = _refused(new.name, topic) if isinstance(topic, Refusal) else created.result(topic)

    await map_in_slices(clock, add_result, zip(new_topics, outcomes, strict=True))
    return messages.RESPONSE(topics=[results[name] for name in requested])


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    names = dict.fromkeys(topic.name for topic in request.body.topics)
    return messages.RESPONSE(topics=[_refused(name, refusal) for name in names])


async def _throttled(context: Context, request: Request, new_topics: Sequence[NewTopic]) -> dict[str, Refusal]:
    """Returns the topics that the quota refuses. Topics that cannot be created do not count against the quota."""
    quotas = request.route.quotas
    assert quotas is not None
    is_strict = request.version >= THROTTLING_SINCE
    refusals = {}
    for outcome in await context.controller.create_topics(new_topics, validate_only=True):
        if isinstance(outcome, TopicImage):
            refusal = quotas.mutation_refusal(request, len(outcome.partitions), is_strict=is_strict)
            if refusal is not None:
                refusals[outcome.name] = refusal
    return refusals


def _name_problem(name: str, count: int) -> Refusal | None:
    if count > 1:
        return Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if name == _CLUSTER_METADATA:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {_CLUSTER_METADATA} is prohibited.")
    return None


def _problem(topic: Any) -> Refusal | None:
    """Validates the request alone; the controller validates it against the existing topics. None if it is valid."""
    if without_value := [config.name for config in topic.configs if config.value is None]:
        return Refusal(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(without_value)}"
        )
    partitions = Counter(assigned.partition_index for assigned in topic.assignments)
    if repeated := [index for index, times in partitions.items() if times > 1]:
        message = f"Found multiple manual partition assignments for partition {repeated[0]}"
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return None


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignment={assigned.partition_index: assigned.broker_ids for assigned in topic.assignments} or None,
        configs={config.name: config.value for config in topic.configs},
    )


def _refused(name: str, refusal: Refusal) -> Any:
    return messages.CreatableTopicResult(name=name, error_code=refusal.code, error_message=refusal.message)


def _partition_count(context: Context, new: NewTopic) -> int:
    """Returns how many partitions the request asks for; a count that will be refused is 0, as in Kafka."""
    if new.assignment:
        return len(new.assignment)
    return context.config.num_partitions if new.partitions == DEFAULT else max(0, new.partitions)


class _Created:
    """Makes the results of one request. Topics with equal configs share the list of them: it is long."""

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._described: dict[frozenset[tuple[str, str]], list[Any]] = {}

    def result(self, topic: TopicImage) -> Any:
        # `configs` is an empty list by default: Java's admin client fails on null.
        result = messages.CreatableTopicResult(name=topic.name, topic_id=topic.id, error_message=None)
        if self._request.version < CONFIGS_SINCE:
            return result
        if not allows_topic(self._context, self._request, AclOperation.DESCRIBE_CONFIGS, topic.name, quiet=True):
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return result
        result.num_partitions = len(topic.partitions)
        result.replication_factor = topic.replication_factor
        key = frozenset(topic.configs.items())
        if key not in self._described:
            self._described[key] = _configs(self._context, topic)
        result.configs = self._described[key]
        return result


def _configs(context: Context, topic: TopicImage) -> list[Any]:
    return [
        messages.CreatableTopicConfigs(
            name=entry.name,
            value=None if entry.is_sensitive else entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in describe_topic_configs(context.config, topic.configs)
    ]
