"""Builds the controller's requests to the other brokers: LeaderAndIsr, UpdateMetadata, StopReplica. Pure.

A broker that has registered gets the full state; later it gets the changes. LeaderAndIsr goes to the replicas of
partitions with a new leader epoch, before the UpdateMetadata that goes to all brokers. StopReplica follows when a topic
was deleted, or a partition moved to other replicas.
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
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.election import is_online
from kbroker.protocol.messages import leader_and_isr, stop_replica, update_metadata
from kbroker.protocol.registry import Api, api

__all__ = [
    "LEADER_AND_ISR",
    "LEADER_DURING_DELETE",
    "SECURITY_PROTOCOLS",
    "ControlRequest",
    "changed_state",
    "full_state",
    "held_state",
]

LEADER_AND_ISR: Final = api(4)
STOP_REPLICA: Final = api(5)
UPDATE_METADATA: Final = api(6)

LEADER_DURING_DELETE: Final = -2
"""Leader and leader epoch of a partition whose topic is being deleted."""

_INCREMENTAL: Final = 1
_FULL: Final = 2
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_States = dict[str, dict[int, PartitionState]]


@dataclass(frozen=True, slots=True)
class ControlRequest:
    api: Api
    members: Mapping[str, Any]
    at_least: int
    """The lowest version to use: the first one that groups partitions by topic, with topic ids if the API has them."""


def full_state(image: Image, broker: BrokerRegistration, listener_name: str) -> list[ControlRequest]:
    """Builds the requests for a newly registered broker: metadata of all topics, and the state of its replicas."""
    states: _States = {name: dict(enumerate(topic.partitions)) for name, topic in image.topics.items()}
    builder = _RequestBuilder(image, broker, listener_name)
    return [
        builder.update_metadata(states, ()),
        builder.leader_and_isr(_held_by(broker.id, states), {}, _FULL),
    ]


def held_state(image: Image, broker: BrokerRegistration, listener_name: str) -> list[ControlRequest]:
    """Builds the request with the state of the broker's replicas, which makes it report those that have failed."""
    states: _States = {name: dict(enumerate(topic.partitions)) for name, topic in image.topics.items()}
    return [_RequestBuilder(image, broker, listener_name).leader_and_isr(_held_by(broker.id, states), {}, _INCREMENTAL)]


def changed_state(
    before: Image, after: Image, changes: Sequence[Change], broker: BrokerRegistration, listener_name: str
) -> list[ControlRequest]:
    """Builds the requests for a broker that knows the image `before`."""
    states: _States = {}
    removed: list[TopicImage] = []
    has_other_changes = False
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
                has_other_changes = True
    builder = _RequestBuilder(after, broker, listener_name)
    requests: list[ControlRequest] = []
    elected = _held_by(broker.id, _with_new_leaders(before, states))
    # The role first: as soon as clients see the new leader in the metadata, they send it their requests.
    if elected:
        requests.append(builder.leader_and_isr(elected, _new_partitions(before, elected), _INCREMENTAL))
    if states or removed or has_other_changes:
        requests.append(builder.update_metadata(states, removed))
    stopped = [(topic.name, dict(enumerate(map(_deleted, topic.partitions)))) for topic in removed]
    stopped += _moved_away(before, states, broker.id).items()
    return requests + builder.stop_replica(stopped)


def _moved_away(before: Image, states: _States, broker_id: int) -> _States:
    """Returns the partitions that the broker held and that now have other replicas, as it knew them but with the new
    leader epoch: a broker deletes its replica only if the epoch is not older than its own."""
    moved: _States = {}
    for name, partitions in states.items():
        for index, state in partitions.items():
            known = before.partition(name, index)
            if known is not None and broker_id in known.replicas and broker_id not in state.replicas:
                moved.setdefault(name, {})[index] = known._replace(leader_epoch=state.leader_epoch)
    return moved


def _held_by(broker_id: int, states: _States) -> _States:
    held = {
        name: {index: state for index, state in partitions.items() if broker_id in state.replicas}
        for name, partitions in states.items()
    }
    return {name: partitions for name, partitions in held.items() if partitions}


def _with_new_leaders(before: Image, states: _States) -> _States:
    """Drops changes of the ISR only: the leader proposed them, and followers do not need them."""
    return {
        name: {
            index: state
            for index, state in partitions.items()
            if (known := before.partition(name, index)) is None or _leadership(known) != _leadership(state)
        }
        for name, partitions in states.items()
    }


def _leadership(partition: PartitionState) -> tuple[object, ...]:
    return partition.leader, partition.leader_epoch, partition.replicas


def _new_partitions(before: Image, states: _States) -> dict[str, set[int]]:
    return {
        name: {index for index in partitions if before.partition(name, index) is None}
        for name, partitions in states.items()
    }


class _RequestBuilder:
    """Builds requests to one broker from one image."""

    def __init__(self, image: Image, broker: BrokerRegistration, listener_name: str) -> None:
        self._image = image
        self._listener_name = listener_name
        self._sender = {
            "controller_id": image.controller_id,
            "controller_epoch": image.controller_epoch,
            "broker_epoch": broker.epoch,
        }
        self._broker = broker

    def leader_and_isr(self, states: _States, new: Mapping[str, set[int]], kind: int) -> ControlRequest:
        leaders = {state.leader for partitions in states.values() for state in partitions.values()}
        topic_states = [
            leader_and_isr.LeaderAndIsrTopicState(
                topic_name=name,
                topic_id=self._image.topics[name].id,
                partition_states=[
                    leader_and_isr.LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=state.controller_epoch,
                        leader=state.leader,
                        leader_epoch=state.leader_epoch,
                        isr=state.isr,
                        partition_epoch=state.partition_epoch,
                        replicas=state.replicas,
                        adding_replicas=state.adding_replicas,
                        removing_replicas=state.removing_replicas,
                        is_new=index in new.get(name, ()),
                    )
                    for index, state in partitions.items()
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

    def update_metadata(self, states: _States, removed: Sequence[TopicImage]) -> ControlRequest:
        topics = [
            update_metadata.UpdateMetadataTopicState(
                topic_name=topic.name,
                topic_id=topic.id,
                partition_states=[self._state(index, _deleted(state)) for index, state in enumerate(topic.partitions)],
            )
            for topic in removed
        ] + [
            update_metadata.UpdateMetadataTopicState(
                topic_name=name,
                topic_id=self._image.topics[name].id,
                partition_states=[self._state(index, state) for index, state in partitions.items()],
            )
            for name, partitions in states.items()
        ]
        members = {"topic_states": topics, "live_brokers": [_live(broker) for broker in self._image.brokers.values()]}
        return ControlRequest(UPDATE_METADATA, self._sender | members, at_least=7)

    def _state(self, index: int, partition: PartitionState) -> Any:
        brokers = self._image.brokers
        return update_metadata.UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=partition.controller_epoch,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            zk_version=partition.partition_epoch,
            replicas=partition.replicas,
            offline_replicas=[replica for replica in partition.replicas if not is_online(partition, replica, brokers)],
        )

    def stop_replica(self, stopped: Iterable[tuple[str, Mapping[int, PartitionState]]]) -> list[ControlRequest]:
        """Builds the request to delete the broker's replicas among `stopped`; an empty list if it has none."""
        topic_states = []
        for name, partitions in stopped:
            states = [
                stop_replica.StopReplicaPartitionState(
                    partition_index=index, leader_epoch=state.leader_epoch, delete_partition=True
                )
                for index, state in partitions.items()
                if self._broker.id in state.replicas
            ]
            if states:
                topic_states.append(stop_replica.StopReplicaTopicState(topic_name=name, partition_states=states))
        return (
            [ControlRequest(STOP_REPLICA, self._sender | {"topic_states": topic_states}, at_least=3)]
            if topic_states
            else []
        )


def _deleted(partition: PartitionState) -> PartitionState:
    return partition._replace(leader=LEADER_DURING_DELETE, leader_epoch=LEADER_DURING_DELETE)


def _live(broker: BrokerRegistration) -> Any:
    endpoints = [
        update_metadata.UpdateMetadataEndpoint(
            port=endpoint.port,
            host=endpoint.host,
            listener=endpoint.name,
            security_protocol=SECURITY_PROTOCOLS.index(endpoint.security_protocol),
        )
        for endpoint in broker.endpoints
    ]
    return update_metadata.UpdateMetadataBroker(id=broker.id, endpoints=endpoints, rack=broker.rack)
