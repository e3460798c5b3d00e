"""Turns the controller's requests into changes of the image: the counterpart of control_requests.py. Pure.

A partition's state is applied unless it is older than the known one (its node's version grows with each write).
Topics that the image does not have, or has under another id, are read from the tree with their configs first:
`unknown_topics` names them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import BrokerAdded, BrokerRemoved, Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.cluster.control_requests import LEADER_DURING_DELETE, SECURITY_PROTOCOLS
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.errors import Refusal
from kbroker.names import ZERO_UUID, topic_name_problem
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "TopicUpdate",
    "changes_of_brokers",
    "changes_of_topics",
    "received_brokers",
    "received_topics",
    "unknown_topics",
]


@dataclass(slots=True)
class TopicUpdate:
    name: str
    id: bytes
    """ZERO_UUID if the version of the request has no topic ids."""
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    is_removed: bool = False
    has_offline_replicas: bool = False
    """Whether the states have the failed replicas: UpdateMetadata does, LeaderAndIsr does not."""


def received_topics(body: Any) -> list[TopicUpdate]:
    """Returns the topics of a LeaderAndIsr or an UpdateMetadata request, of any version.

    Raises INVALID_REQUEST if a partition has a negative index.
    """
    topics: dict[str, TopicUpdate] = {}
    live = {broker.id for broker in body.live_brokers} if "live_brokers" in body.__class__.names else set()
    for state in body.ungrouped_partition_states:
        _add_state(topics.setdefault(state.topic_name, TopicUpdate(state.topic_name, ZERO_UUID)), state, live)
    for group in body.topic_states:
        topic = topics.setdefault(group.topic_name, TopicUpdate(group.topic_name, group.topic_id))
        for state in group.partition_states:
            _add_state(topic, state, live)
    return list(topics.values())


def _add_state(topic: TopicUpdate, state: Any, live: Container[int]) -> None:
    if state.leader == LEADER_DURING_DELETE:
        topic.is_removed = True
        return
    if state.partition_index < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Partition {state.partition_index} of topic {topic.name}")
    names = state.__class__.names
    topic.has_offline_replicas = "offline_replicas" in names
    # Replicas of dead brokers are left out: when a broker returns, the states of its partitions may not be sent again.
    offline = (replica for replica in state.offline_replicas if replica in live) if topic.has_offline_replicas else ()
    topic.partitions[state.partition_index] = PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(state.isr),
        replicas=tuple(state.replicas),
        partition_epoch=state.partition_epoch if "partition_epoch" in names else state.zk_version,
        controller_epoch=state.controller_epoch,
        adding_replicas=tuple(state.adding_replicas) if "adding_replicas" in names else (),
        removing_replicas=tuple(state.removing_replicas) if "removing_replicas" in names else (),
        offline_replicas=tuple(offline),
    )


def unknown_topics(image: Image, updates: Iterable[TopicUpdate]) -> list[str]:
    """Returns the names of topics that must be read from the tree before `changes_of_topics`.

    A topic whose name no topic can have does not exist: its name may not even be a path of the tree.
    """
    return [
        topic.name
        for topic in updates
        if not topic.is_removed
        and not _is_known(image.topic(topic.name), topic)
        and topic_name_problem(topic.name) is None
    ]


def _is_known(known: TopicImage | None, update: TopicUpdate) -> bool:
    if known is None or update.id not in (ZERO_UUID, known.id):
        return False
    return all(index < len(known.partitions) for index in update.partitions)


def changes_of_topics(image: Image, updates: Iterable[TopicUpdate], read: Mapping[str, TopicImage]) -> list[Change]:
    """Returns the changes that the updates make. `read`: the `unknown_topics` that the tree has."""
    changes: list[Change] = []
    for update in updates:
        known = image.topic(update.name)
        if update.is_removed:
            if known is not None and update.id in (ZERO_UUID, known.id):
                changes.append(TopicRemoved(known))
            continue
        fresh = read.get(update.name)
        if fresh is not None:
            known = _add_fresh(changes, known, fresh)
        if known is None or update.id not in (ZERO_UUID, known.id):
            continue  # the topic was deleted, and perhaps created again: a later request has the new one
        newer = {
            index: _with_known(state, known.partitions[index], has_offline_replicas=update.has_offline_replicas)
            for index, state in update.partitions.items()
            if index < len(known.partitions) and state.partition_epoch >= known.partitions[index].partition_epoch
        }
        newer = {index: state for index, state in newer.items() if state != known.partitions[index]}
        if newer:
            changes.append(PartitionsChanged(update.name, newer))
    return changes


def _add_fresh(changes: list[Change], known: TopicImage | None, fresh: TopicImage) -> TopicImage:
    if known is not None and known.id == fresh.id and len(known.partitions) <= len(fresh.partitions):
        added = {index: fresh.partitions[index] for index in range(len(known.partitions), len(fresh.partitions))}
        if added:
            changes.append(PartitionsChanged(fresh.name, added))
        return replace(known, partitions=(*known.partitions, *added.values()))
    if known is not None:
        changes.append(TopicRemoved(known))
    changes.append(TopicAdded(fresh))
    return fresh


def _with_known(state: PartitionState, known: PartitionState, *, has_offline_replicas: bool) -> PartitionState:
    """Keeps what the request does not contain: LeaderAndIsr has no failed replicas, UpdateMetadata no moves."""
    if not has_offline_replicas:
        return state._replace(offline_replicas=known.offline_replicas)
    if (state.replicas, state.leader_epoch) != (known.replicas, known.leader_epoch):
        return state  # a replica gets the LeaderAndIsr of a move first
    return state._replace(adding_replicas=known.adding_replicas, removing_replicas=known.removing_replicas)


def received_brokers(body: Any) -> list[BrokerRegistration]:
    """Returns the live brokers of an UpdateMetadata request. Their epochs are -1: the request has none.

    Raises INVALID_REQUEST if the security protocol of an endpoint is unknown.
    """
    brokers = []
    for broker in body.live_brokers:
        endpoints = [_endpoint(endpoint) for endpoint in broker.endpoints]
        if not endpoints and broker.v0_host:
            endpoints = [Endpoint("PLAINTEXT", broker.v0_host, broker.v0_port)]
        brokers.append(BrokerRegistration(broker.id, -1, tuple(endpoints), broker.rack))
    return brokers


def _endpoint(received: Any) -> Endpoint:
    if not 0 <= received.security_protocol < len(SECURITY_PROTOCOLS):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown security protocol {received.security_protocol}")
    protocol = SECURITY_PROTOCOLS[received.security_protocol]
    return Endpoint(received.listener or protocol, received.host, received.port, protocol)


def changes_of_brokers(image: Image, live: Iterable[BrokerRegistration]) -> list[Change]:
    brokers = {broker.id: broker for broker in live}
    changes: list[Change] = [BrokerRemoved(broker_id) for broker_id in image.brokers if broker_id not in brokers]
    for broker in brokers.values():
        known = image.brokers.get(broker.id)
        if known is None or (known.endpoints, known.rack) != (broker.endpoints, broker.rack):
            changes.append(BrokerAdded(broker if known is None else replace(broker, epoch=known.epoch)))
    return changes
