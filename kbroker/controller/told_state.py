"""What a controller has told this broker, as changes of its image: the other side of control_requests.py. Pure.

A state counts if it is not older than the known one (the version of its node grows with each). Topics that are not
known yet, or are known under another id, come from the tree, with their configs: `unknown_topics` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbroker.config import Endpoint
from kbroker.controller.changes import BrokerAdded, BrokerRemoved, Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.control_requests import LEADER_DURING_DELETE, SECURITY_PROTOCOLS
from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.names import ZERO_UUID

__all__ = ["ToldTopic", "changes_of_brokers", "changes_of_topics", "told_brokers", "told_topics", "unknown_topics"]


@dataclass(slots=True)
class ToldTopic:
    name: str
    id: bytes
    """Of zeros where an old version of the request does not tell."""
    partitions: dict[int, Partition] = field(default_factory=dict)
    is_removed: bool = False


def told_topics(body: Any) -> list[ToldTopic]:
    """The topics of a LeaderAndIsr or an UpdateMetadata, in any version."""
    topics: dict[str, ToldTopic] = {}
    for each in body.ungrouped_partition_states:
        _note(topics.setdefault(each.topic_name, ToldTopic(each.topic_name, ZERO_UUID)), each)
    for group in body.topic_states:
        topic = topics.setdefault(group.topic_name, ToldTopic(group.topic_name, group.topic_id))
        for each in group.partition_states:
            _note(topic, each)
    return list(topics.values())


def _note(topic: ToldTopic, state: Any) -> None:
    if state.leader == LEADER_DURING_DELETE:
        topic.is_removed = True
        return
    names = state.__class__.names
    topic.partitions[state.partition_index] = Partition(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(state.isr),
        replicas=tuple(state.replicas),
        partition_epoch=state.partition_epoch if "partition_epoch" in names else state.zk_version,
        controller_epoch=state.controller_epoch,
        adding_replicas=tuple(state.adding_replicas) if "adding_replicas" in names else (),
        removing_replicas=tuple(state.removing_replicas) if "removing_replicas" in names else (),
    )


def unknown_topics(image: Image, told: Iterable[ToldTopic]) -> list[str]:
    """Those that must be read from the tree before `changes_of_topics`."""
    return [topic.name for topic in told if not topic.is_removed and not _is_known(image.topic(topic.name), topic)]


def _is_known(known: Topic | None, told: ToldTopic) -> bool:
    if known is None or told.id not in (ZERO_UUID, known.id):
        return False
    return all(index < len(known.partitions) for index in told.partitions)


def changes_of_topics(image: Image, told: Iterable[ToldTopic], read: Mapping[str, Topic]) -> list[Change]:
    """`read`: what the tree holds of `unknown_topics`."""
    changes: list[Change] = []
    for each in told:
        known = image.topic(each.name)
        if each.is_removed:
            if known is not None and each.id in (ZERO_UUID, known.id):
                changes.append(TopicRemoved(known))
            continue
        fresh = read.get(each.name)
        if fresh is not None:
            known = _add_fresh(changes, known, fresh)
        if known is None or each.id not in (ZERO_UUID, known.id):
            continue  # it is gone from the tree, or another topic has its name by now: that one will be told of
        newer = {
            index: _with_moves(state, known.partitions[index])
            for index, state in each.partitions.items()
            if index < len(known.partitions) and state.partition_epoch >= known.partitions[index].partition_epoch
        }
        newer = {index: state for index, state in newer.items() if state != known.partitions[index]}
        if newer:
            changes.append(PartitionsChanged(each.name, newer))
    return changes


def _add_fresh(changes: list[Change], known: Topic | None, fresh: Topic) -> Topic:
    if known is not None and known.id == fresh.id and len(known.partitions) <= len(fresh.partitions):
        added = {index: fresh.partitions[index] for index in range(len(known.partitions), len(fresh.partitions))}
        if added:
            changes.append(PartitionsChanged(fresh.name, added))
        return replace(known, partitions=(*known.partitions, *added.values()))
    if known is not None:
        changes.append(TopicRemoved(known))
    changes.append(TopicAdded(fresh))
    return fresh


def _with_moves(state: Partition, known: Partition) -> Partition:
    """UpdateMetadata does not tell which replicas come and go: what LeaderAndIsr told stays, for the same replicas."""
    if state.adding_replicas or state.removing_replicas or state.replicas != known.replicas:
        return state
    return state._replace(adding_replicas=known.adding_replicas, removing_replicas=known.removing_replicas)


def told_brokers(body: Any) -> list[Broker]:
    """The live brokers of an UpdateMetadata. Their epochs are not told."""
    brokers = []
    for each in body.live_brokers:
        endpoints = [_endpoint(one) for one in each.endpoints]
        if not endpoints and each.v0_host:
            endpoints = [Endpoint("PLAINTEXT", each.v0_host, each.v0_port)]
        brokers.append(Broker(each.id, -1, tuple(endpoints), each.rack))
    return brokers


def _endpoint(told: Any) -> Endpoint:
    protocol = SECURITY_PROTOCOLS[told.security_protocol]
    return Endpoint(told.listener or protocol, told.host, told.port, protocol)


def changes_of_brokers(image: Image, told: Iterable[Broker]) -> list[Change]:
    brokers = {each.id: each for each in told}
    changes: list[Change] = [BrokerRemoved(each) for each in image.brokers if each not in brokers]
    for each in brokers.values():
        known = image.brokers.get(each.id)
        if known is None or (known.endpoints, known.rack) != (each.endpoints, each.rack):
            changes.append(BrokerAdded(each if known is None else replace(each, epoch=known.epoch)))
    return changes
