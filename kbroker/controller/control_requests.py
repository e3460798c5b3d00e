"""What the controller tells the other brokers, as Kafka's requests: LeaderAndIsr, UpdateMetadata, StopReplica. Pure.

A broker that comes gets everything; after that each gets what changed. LeaderAndIsr goes to replicas whose leader epoch
changed, before the UpdateMetadata that goes to all; StopReplica follows when a topic is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.controller.changes import (
    BrokerAdded,
    BrokerRemoved,
    Change,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicRemoved,
)
from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.protocol.messages import leader_and_isr, stop_replica, update_metadata
from kbroker.protocol.registry import Api, api

__all__ = ["LEADER_DURING_DELETE", "SECURITY_PROTOCOLS", "ControlRequest", "changed_state", "full_state"]

LEADER_AND_ISR: Final = api(4)
STOP_REPLICA: Final = api(5)
UPDATE_METADATA: Final = api(6)

LEADER_DURING_DELETE: Final = -2
"""In the place of a leader and of its epoch: the topic is on its way out."""

_INCREMENTAL: Final = 1
_FULL: Final = 2
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_States = dict[str, dict[int, Partition]]


@dataclass(frozen=True, slots=True)
class ControlRequest:
    api: Api
    members: Mapping[str, Any]
    at_least: int
    """The first version that groups partitions by topic, and has topic ids where any has."""


def full_state(image: Image, broker: Broker, listener_name: str) -> list[ControlRequest]:
    """For a broker that has come: the whole cluster, and its own part in it."""
    states: _States = {name: dict(enumerate(topic.partitions)) for name, topic in image.topics.items()}
    told = _Told(image, broker, listener_name)
    return [told.metadata(states, ()), told.leadership(_held_by(broker.id, states), {}, _FULL)]


def changed_state(
    before: Image, after: Image, changes: Sequence[Change], broker: Broker, listener_name: str
) -> list[ControlRequest]:
    """For a broker that knows what was before."""
    states: _States = {}
    removed: list[Topic] = []
    is_news = False
    for change in changes:
        match change:
            case TopicAdded(topic) if topic.name in after.topics:
                states[topic.name] = dict(enumerate(topic.partitions))
            case PartitionsChanged(name, partitions) if name in after.topics:
                states.setdefault(name, {}).update(partitions)
            case TopicRemoved(topic):
                removed.append(topic)
                states.pop(topic.name, None)
            case BrokerAdded() | BrokerRemoved() | ControllerChanged():
                is_news = True
    told = _Told(after, broker, listener_name)
    requests: list[ControlRequest] = []
    elected = _held_by(broker.id, _with_new_leaders(before, states))
    if elected:
        requests.append(told.leadership(elected, _new_partitions(before, elected), _INCREMENTAL))
    if states or removed or is_news:
        requests.append(told.metadata(states, removed))
    if removed:
        requests += told.stop(removed)
    return requests


def _held_by(broker_id: int, states: _States) -> _States:
    held = {
        name: {index: each for index, each in partitions.items() if broker_id in each.replicas}
        for name, partitions in states.items()
    }
    return {name: partitions for name, partitions in held.items() if partitions}


def _with_new_leaders(before: Image, states: _States) -> _States:
    """A change of the ISR alone is known to its leader, who asked for it, and nothing that followers act upon."""
    return {
        name: {
            index: each
            for index, each in partitions.items()
            if (known := before.partition(name, index)) is None or _leadership(known) != _leadership(each)
        }
        for name, partitions in states.items()
    }


def _leadership(partition: Partition) -> tuple[object, ...]:
    return partition.leader, partition.leader_epoch, partition.replicas


def _new_partitions(before: Image, states: _States) -> dict[str, set[int]]:
    return {
        name: {index for index in partitions if before.partition(name, index) is None}
        for name, partitions in states.items()
    }


class _Told:
    """Requests to one broker about one image."""

    def __init__(self, image: Image, broker: Broker, listener_name: str) -> None:
        self._image = image
        self._listener_name = listener_name
        self._sender = {
            "controller_id": image.controller_id,
            "controller_epoch": image.controller_epoch,
            "broker_epoch": broker.epoch,
        }
        self._broker = broker

    def leadership(self, states: _States, new: Mapping[str, set[int]], kind: int) -> ControlRequest:
        leaders = {each.leader for partitions in states.values() for each in partitions.values()}
        topic_states = [
            leader_and_isr.LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=self._image.topics[name].id,
                partition_states=[
                    leader_and_isr.LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=each.controller_epoch,
                        leader=each.leader,
                        leader_epoch=each.leader_epoch,
                        isr=each.isr,
                        partition_epoch=each.partition_epoch,
                        replicas=each.replicas,
                        adding_replicas=each.adding_replicas,
                        removing_replicas=each.removing_replicas,
                        is_new=index in new.get(name, ()),
                    )
                    for index, each in partitions.items()
                ],
            )
            for name, partitions in states.items()
        ]
        members = {"type": kind, "topic_states": topic_states, "live_leaders": list(self._live_leaders(leaders))}
        return ControlRequest(LEADER_AND_ISR, self._sender | members, at_least=5)

    def _live_leaders(self, leaders: Iterable[int]) -> Iterable[Any]:
        for leader in sorted(leaders):
            broker = self._image.brokers.get(leader)
            endpoint = None if broker is None else broker.endpoint(self._listener_name)
            if endpoint is not None:
                yield leader_and_isr.LeaderAndIsrLiveLeader(
                    broker_id=leader, host_name=endpoint.host, port=endpoint.port
                )

    def metadata(self, states: _States, removed: Sequence[Topic]) -> ControlRequest:
        topics = [
            update_metadata.UpdateMetadataTopicState(
                topic_name=topic.name,
                topic_id=topic.id,
                partition_states=[self._cached(index, _doomed(each)) for index, each in enumerate(topic.partitions)],
            )
            for topic in removed
        ] + [
            update_metadata.UpdateMetadataTopicState(
                topic_name=name,
                topic_id=self._image.topics[name].id,
                partition_states=[self._cached(index, each) for index, each in partitions.items()],
            )
            for name, partitions in states.items()
        ]
        members = {"topic_states": topics, "live_brokers": [_live(each) for each in self._image.brokers.values()]}
        return ControlRequest(UPDATE_METADATA, self._sender | members, at_least=7)

    def _cached(self, index: int, partition: Partition) -> Any:
        brokers = self._image.brokers
        return update_metadata.UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=partition.controller_epoch,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            zk_version=partition.partition_epoch,
            replicas=partition.replicas,
            offline_replicas=[each for each in partition.replicas if each not in brokers],
        )

    def stop(self, removed: Sequence[Topic]) -> list[ControlRequest]:
        """Its replicas of topics that are gone: stop, and delete."""
        topic_states = []
        for topic in removed:
            held = [index for index, each in enumerate(topic.partitions) if self._broker.id in each.replicas]
            if held:
                states = [
                    stop_replica.StopReplicaPartitionState(
                        partition_index=index, leader_epoch=LEADER_DURING_DELETE, delete_partition=True
                    )
                    for index in held
                ]
                topic_states.append(stop_replica.StopReplicaTopicState(topic_name=topic.name, partition_states=states))
        return (
            [ControlRequest(STOP_REPLICA, self._sender | {"topic_states": topic_states}, at_least=3)]
            if topic_states
            else []
        )


def _doomed(partition: Partition) -> Partition:
    return partition._replace(leader=LEADER_DURING_DELETE, leader_epoch=LEADER_DURING_DELETE)


def _live(broker: Broker) -> Any:
    endpoints = [
        update_metadata.UpdateMetadataEndpoint(
            port=each.port,
            host=each.host,
            listener=each.name,
            security_protocol=SECURITY_PROTOCOLS.index(each.security_protocol),
        )
        for each in broker.endpoints
    ]
    return update_metadata.UpdateMetadataBroker(id=broker.id, endpoints=endpoints, rack=broker.rack)
