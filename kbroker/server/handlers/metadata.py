"""Metadata (3), v0-13: returns brokers and topics with their leaders, as seen from the client's listener.

All topics are requested by an empty list in v0, by null from v1; that response is the same for all clients, so its
encoded bytes are cached until the image changes. A missing topic is created first, if the client, the config and the
rate of automatic creation allow it. v12: topics by id (KIP-516); if a request has one id, all its topics are looked up
by id. A topic that a request names several times is described once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kbroker.controller.controller import Controller
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.election import is_online
from kbroker.controller.rules.topic_rules import DEFAULT, NewTopic
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID, is_internal_topic, topic_name_problem
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import metadata as messages
from kbroker.server.access.authorized_operations import cluster_operations, topic_operations
from kbroker.server.access.permissions import allows_cluster, allows_topic
from kbroker.server.topics.internal_topics import new_topic
from kbroker.server.topics.offline_replicas import mark_offline
from kbroker.server.topics.topic_creation import create_topics
from kbroker.time_slice import end_unless, map_in_slices, respond_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

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
    wanted = _Wanted(request)
    return respond_in_slices(context.clock, wanted.add, topics, lambda _: _describe_wanted(context, request, wanted))


def refuse(request: Request, code: int, message: str | None) -> Any:
    topics = request.body.topics or ()
    refused = [_Topic(name=topic.name or "", topic_id=topic.topic_id, error_code=code) for topic in topics]
    return messages.RESPONSE(topics=refused, error_code=code)


class _Wanted:
    """The topics of one request, each once, in order. Raises Refusal if the version does not allow a name or id."""

    def __init__(self, request: Request) -> None:
        self._version = request.version
        self.names: dict[str, None] = {}
        self.ids: dict[bytes, None] = {}

    def add(self, topic: Any) -> None:
        if topic.topic_id == ZERO_UUID:
            if topic.name is None and self._version >= 10:
                message = f"Topic name can not be null for version {self._version}"
                raise Refusal(ErrorCode.INVALID_REQUEST, message)
            self.names[topic.name] = None
        elif self._version < IDS_SINCE:
            message = f"Topic IDs are not supported in requests for version {self._version}"
            raise Refusal(ErrorCode.INVALID_REQUEST, message)
        else:
            self.ids[topic.topic_id] = None


def _describe_wanted(context: Context, request: Request, wanted: _Wanted) -> Any:
    answers = _Answers(context, request, {})
    if wanted.ids:
        return respond_in_slices(context.clock, answers.add_by_id, wanted.ids, answers.response)
    if not (request.body.allow_auto_topic_creation and context.config.auto_create_topics_enable):
        return respond_in_slices(context.clock, answers.add_by_name, wanted.names, answers.response)
    missing: list[NewTopic] = []

    def create_missing(_: list[None]) -> Any:
        if missing:
            return _create_and_respond(context, request, wanted.names, missing)
        return respond_in_slices(context.clock, answers.add_by_name, wanted.names, answers.response)

    return respond_in_slices(
        context.clock, partial(_add_if_creatable, context, request, missing), wanted.names, create_missing
    )


def _everything(context: Context, request: Request) -> Any:
    body = request.body
    # With quotas, the throttle time differs for each client, so responses cannot be shared.
    is_shared = (context.authorizer.allows_all and request.route.quotas is None) and not (
        body.include_topic_authorized_operations
        or body.include_cluster_authorized_operations
        or context.log_dirs.has_offline
    )
    image = context.controller.image
    if not is_shared:
        answers = _Answers(context, request, {})
        return respond_in_slices(context.clock, answers.add_if_allowed, image.topics.values(), answers.response)
    cached = _all_topics.get(context.controller)
    if cached is None or cached[0] is not image:
        cached = _all_topics[context.controller] = (image, {})
    bodies = cached[1]
    key = (request.listener_name, request.version)
    encoded = bodies.get(key)
    if encoded is None:
        answers = _Answers(context, request, {})
        for topic in image.topics.values():
            answers.add_if_allowed(topic)
        encoded = bodies[key] = request.encode(answers.response())
    request.reply_encoded(encoded)
    return None


class _Answers:
    """Describes topics, all from the image of the moment when it is created, and makes the response of them.

    `failed`: error codes of topics that could not be created.
    """

    def __init__(self, context: Context, request: Request, failed: dict[str, int]) -> None:
        self._context = context
        self._request = request
        self._failed = failed
        self._image = image = context.controller.image
        self._reachable = {
            broker.id for broker in image.brokers.values() if broker.endpoint(request.listener_name) is not None
        }
        self._unknown_ids: list[Any] = []
        self._known: list[Any] = []
        self._absent: list[Any] = []

    def add_by_id(self, topic_id: bytes) -> None:
        topic = self._image.topic_by_id(topic_id)
        if topic is None:
            answer = _Topic(name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
            self._unknown_ids.append(answer)
        elif not self._is_allowed(topic.name):
            # The name stays secret: the client may know only the id.
            answer = _Topic(name=None, topic_id=topic_id, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            self._unknown_ids.append(answer)
        else:
            self._add(topic)

    def add_by_name(self, name: str) -> None:
        topic = self._image.topic(name)
        if not self._is_allowed(name):
            self._absent.append(_Topic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif topic is not None:
            self._add(topic)
        else:
            self._absent.append(_absent(self._context, self._request, name, self._failed))

    def add_if_allowed(self, topic: TopicImage) -> None:
        if self._is_allowed(topic.name, quiet=True):
            self._add(topic)

    def response(self, _: object = None) -> Any:
        topics = self._unknown_ids + self._known + self._absent
        return _response(self._context, self._request, self._image, topics)

    def _is_allowed(self, name: str, *, quiet: bool = False) -> bool:
        return allows_topic(self._context, self._request, AclOperation.DESCRIBE, name, quiet=quiet)

    def _add(self, topic: TopicImage) -> None:
        answer = _described(topic, self._image.brokers, self._reachable, self._request.version)
        mark_offline(self._context, (answer,))
        if self._request.body.include_topic_authorized_operations:
            answer.topic_authorized_operations = topic_operations(self._context, self._request, topic.name)
        self._known.append(answer)


def _absent(context: Context, request: Request, name: str, failed: dict[str, int]) -> Any:
    if topic_name_problem(name) is not None:
        code: int = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answer = _Topic(name=name, error_code=code, is_internal=is_internal_topic(name))
    if request.body.include_topic_authorized_operations and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        answer.topic_authorized_operations = topic_operations(context, request, name)
    return answer


def _add_if_creatable(context: Context, request: Request, missing: list[NewTopic], name: str) -> None:
    """Adds a topic that does not exist, if the client and the rate of automatic creation let the broker create it."""
    if (
        name in context.controller.image.topics
        or topic_name_problem(name) is not None
        or not allows_topic(context, request, AclOperation.DESCRIBE, name, quiet=True)
    ):
        return
    new = new_topic(name, context.config, is_single_node=context.member is None)
    if context.auto_creation.take(_partition_count(context, new)):
        missing.append(new)


def _partition_count(context: Context, new: NewTopic) -> int:
    return context.config.num_partitions if new.partitions == DEFAULT else new.partitions


async def _create_and_respond(context: Context, request: Request, names: Iterable[str], missing: list[NewTopic]) -> Any:
    end_unless(None)  # topics are created, and the rest of the rate is given back
    failed: dict[str, int] = {}
    allowed = missing
    if not allows_cluster(context, request, AclOperation.CREATE, quiet=True):
        allowed = [new for new in missing if allows_topic(context, request, AclOperation.CREATE, new.name)]
        failed = {new.name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for new in missing}
    created = []
    if allowed:
        outcomes = await create_topics(context.controller, context.member, allowed)
        for new, outcome in zip(allowed, outcomes, strict=True):
            failed.pop(new.name, None)
            if not isinstance(outcome, Refusal):
                created.append(new)
            # A topic that another request created in the meantime is in the image by now.
            elif outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                failed[new.name] = outcome.code
    planned, used = (sum(_partition_count(context, new) for new in topics) for topics in (missing, created))
    context.auto_creation.give_back(planned - used)
    answers = _Answers(context, request, failed)
    await map_in_slices(context.clock, answers.add_by_name, names)
    return answers.response()


def _response(context: Context, request: Request, image: Image, topics: list[Any]) -> Any:
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


def _described(topic: TopicImage, brokers: Mapping[int, BrokerRegistration], reachable: set[int], version: int) -> Any:
    partitions = [
        _Partition(
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=(),
        )
        if partition.leader in reachable and reachable.issuperset(partition.replicas) and not partition.offline_replicas
        else _partition_with_absent_brokers(index, partition, brokers, reachable, version)
        for index, partition in enumerate(topic.partitions)
    ]
    return _Topic(name=topic.name, topic_id=topic.id, is_internal=topic.is_internal, partitions=partitions)


def _partition_with_absent_brokers(
    index: int,
    partition: PartitionState,
    brokers: Mapping[int, BrokerRegistration],
    reachable: set[int],
    version: int,
) -> Any:
    """Returns a partition of which some replicas are offline, or their brokers do not have the client's listener."""
    replicas, isr, leader = partition.replicas, partition.isr, partition.leader
    offline = tuple(replica for replica in replicas if not is_online(partition, replica, reachable))
    code = ErrorCode.NONE
    if leader not in reachable:
        lacks_listener = leader in brokers and version >= LISTENER_NOT_FOUND_SINCE
        code = ErrorCode.LISTENER_NOT_FOUND if lacks_listener else ErrorCode.LEADER_NOT_AVAILABLE
        leader = -1
    if version == 0:
        # Clients of v0 fail on the id of a broker that is not in the response's list of brokers.
        replicas = tuple(broker_id for broker_id in replicas if broker_id in reachable)
        isr = tuple(broker_id for broker_id in isr if broker_id in reachable)
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
