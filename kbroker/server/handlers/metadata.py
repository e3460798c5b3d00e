"""Metadata (3), v0-13: brokers, and topics with their leaders, as the listener that was asked shows them.

All topics: an empty list in v0, null from v1 on; the answer is the same for everybody, so its bytes are kept until the
image changes. By name: what is missing is created at once, if client and config allow it, and answered as the topic
itself; nothing else here waits. By id: from v12 on; one id makes the whole request one by ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kbroker.controller.controller import Controller
from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID, is_internal_topic, topic_name_problem
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import metadata as messages
from kbroker.server.authorization import Operation
from kbroker.server.authorized_operations import cluster_operations, topic_operations
from kbroker.server.internal_topics import new_topic
from kbroker.server.offline_replicas import mark_offline
from kbroker.server.permissions import allows_cluster, allows_topic
from kbroker.server.topic_creation import create_topics

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

IDS_SINCE: Final = 12
LISTENER_NOT_FOUND_SINCE: Final = 6

_Topic = messages.MetadataResponseTopic.value
_Partition = messages.MetadataResponsePartition.value

_Encoded = tuple[Image, dict[tuple[str, int], bytes]]
_all_topics: WeakKeyDictionary[Controller, _Encoded] = WeakKeyDictionary()


def handle(context: Context, request: Request) -> Any:
    topics = request.body.topics
    if topics is None or (request.version == 0 and not topics):
        return _everything(context, request)
    _check(request, topics)
    ids = {each.topic_id: None for each in topics if each.topic_id != ZERO_UUID}
    if ids:
        return _response(context, request, _by_ids(context, request, ids))
    names = list(dict.fromkeys(each.name for each in topics))
    missing = _creatable(context, request, names)
    if missing:
        return _create_and_answer(context, request, names, missing)
    return _response(context, request, _by_names(context, request, names, {}))


def refuse(request: Request, code: int, message: str | None) -> Any:
    topics = request.body.topics or ()
    refused = [_Topic(name=each.name or "", topic_id=each.topic_id, error_code=code) for each in topics]
    return messages.RESPONSE(topics=refused, error_code=code)


def _check(request: Request, topics: Iterable[Any]) -> None:
    if request.version < 10:
        return
    for each in topics:
        if each.topic_id != ZERO_UUID:
            if request.version < IDS_SINCE:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"Topic ids are not supported in version {request.version}.")
        elif each.name is None:
            raise Refusal(ErrorCode.INVALID_REQUEST, "A topic has neither name nor id.")


def _everything(context: Context, request: Request) -> Any:
    body = request.body
    # How long to wait is each client's own.
    is_shared = (context.authorizer.allows_all and request.route.quotas is None) and not (
        body.include_topic_authorized_operations
        or body.include_cluster_authorized_operations
        or context.partitions.has_offline
    )
    image = context.controller.image
    if not is_shared:
        topics = [
            topic for topic in image.topics.values() if allows_topic(context, request, Operation.DESCRIBE, topic.name)
        ]
        return _response(context, request, _describe(context, request, topics))
    kept = _all_topics.get(context.controller)
    if kept is None or kept[0] is not image:
        kept = _all_topics[context.controller] = (image, {})
    bodies = kept[1]
    key = (request.listener_name, request.version)
    encoded = bodies.get(key)
    if encoded is None:
        topics = list(image.topics.values())
        encoded = request.encode(_response(context, request, _describe(context, request, topics)))
        bodies[key] = encoded
    request.reply_encoded(encoded)
    return None


def _by_ids(context: Context, request: Request, ids: Iterable[bytes]) -> list[Any]:
    image = context.controller.image
    answers: list[Any] = []
    known: list[Topic] = []
    for topic_id in ids:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            answers.append(_Topic(name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID))
        elif not allows_topic(context, request, Operation.DESCRIBE, topic.name):
            # An id tells nobody anything; the name would.
            answers.append(_Topic(name=None, topic_id=topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            known.append(topic)
    return answers + _describe(context, request, known)


def _by_names(context: Context, request: Request, names: Iterable[str], failed: dict[str, int]) -> list[Any]:
    """`failed`: what came of the attempts to create what is missing."""
    image = context.controller.image
    answers: list[Any] = []
    known: list[Topic] = []
    for name in names:
        topic = image.topic(name)
        if not allows_topic(context, request, Operation.DESCRIBE, name):
            answers.append(_Topic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif topic is not None:
            known.append(topic)
        else:
            answers.append(_absent(context, request, name, failed))
    return _describe(context, request, known) + answers


def _absent(context: Context, request: Request, name: str, failed: dict[str, int]) -> Any:
    if topic_name_problem(name) is not None:
        code: int = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer = _Topic(name=name, error_code=code, is_internal=is_internal_topic(name))
    if request.body.include_topic_authorized_operations and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        answer.topic_authorized_operations = topic_operations(context, request, name)
    return answer


def _creatable(context: Context, request: Request, names: Iterable[str]) -> list[str]:
    """The names that lack a topic and may get one now."""
    if not (request.body.allow_auto_topic_creation and context.config.auto_create_topics_enable):
        return []
    topics = context.controller.image.topics
    return [
        name
        for name in names
        if name not in topics
        and topic_name_problem(name) is None
        and allows_topic(context, request, Operation.DESCRIBE, name)
    ]


async def _create_and_answer(context: Context, request: Request, names: list[str], missing: list[str]) -> Any:
    failed: dict[str, int] = {}
    if not allows_cluster(context, request, Operation.CREATE):
        refused = [name for name in missing if not allows_topic(context, request, Operation.CREATE, name)]
        failed.update(dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        missing = [name for name in missing if name not in failed]
    if missing:
        broker_count = len(context.controller.image.brokers)
        wishes = [new_topic(name, context.config, broker_count=broker_count) for name in missing]
        outcomes = await create_topics(context.controller, context.member, wishes)
        for name, outcome in zip(missing, outcomes, strict=True):
            # One that another request has created in the meantime is found in the image.
            if isinstance(outcome, Refusal) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                failed[name] = outcome.code
    return _response(context, request, _by_names(context, request, names, failed))


def _response(context: Context, request: Request, topics: list[Any]) -> Any:
    image = context.controller.image
    response = messages.RESPONSE(
        brokers=list(_brokers(image, request.listener_name)),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )
    if request.body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context, request)
    return response


def _brokers(image: Image, listener_name: str) -> Iterable[Any]:
    for broker in image.brokers.values():
        endpoint = broker.endpoint(listener_name)
        if endpoint is not None:
            yield messages.MetadataResponseBroker(
                node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )


def _describe(context: Context, request: Request, topics: Iterable[Topic]) -> list[Any]:
    brokers = context.controller.image.brokers
    reachable = {each.id for each in brokers.values() if each.endpoint(request.listener_name) is not None}
    version = request.version
    answers = []
    for topic in topics:
        partitions = [
            _Partition(
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=(),
            )
            if partition.leader in reachable and reachable.issuperset(partition.replicas)
            else _partition_with_absent_brokers(index, partition, brokers, reachable, version)
            for index, partition in enumerate(topic.partitions)
        ]
        answers.append(_Topic(name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions))
    mark_offline(context, answers)
    if request.body.include_topic_authorized_operations:
        for answer in answers:
            answer.topic_authorized_operations = topic_operations(context, request, answer.name)
    return answers


def _partition_with_absent_brokers(
    index: int, partition: Partition, brokers: Mapping[int, Broker], reachable: set[int], version: int
) -> Any:
    """Some of its brokers are gone, or do not have the listener that the client came by."""
    replicas, isr, leader = partition.replicas, partition.isr, partition.leader
    offline = tuple(each for each in replicas if each not in reachable)
    code = ErrorCode.NONE
    if leader not in reachable:
        lacks_listener = leader in brokers and version >= LISTENER_NOT_FOUND_SINCE
        code = ErrorCode.LISTENER_NOT_FOUND if lacks_listener else ErrorCode.LEADER_NOT_AVAILABLE
        leader = -1
    if version == 0:
        # Its clients cannot bear the id of a broker that is not in the list of brokers.
        replicas = tuple(each for each in replicas if each in reachable)
        isr = tuple(each for each in isr if each in reachable)
        if code == ErrorCode.NONE:
            code = ErrorCode.REPLICA_NOT_AVAILABLE
    return _Partition(
        error_code=code,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )
