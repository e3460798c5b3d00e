"""Limits the rate at which moves copy, with the configs that Kafka's reassignment tool uses (KIP-73).

The rates are configs of the brokers that take part, and lists of throttled replicas are configs of the topics. Like
Kafka's tool, `remove_throttle` deletes them without regard to who set them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from kbroker.client.admin.configs import ConfigChange, alter_configs
from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal, ConnectionFailed
from kbroker.client.reassignment.layout import PartitionMove
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["remove_throttle", "set_throttle", "throttled"]

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

REMOVAL_SECONDS: Final = 30.0
"""Time to remove a throttle after Ctrl-C. A second Ctrl-C ends the process at once."""

_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@asynccontextmanager
async def throttled(cluster: Cluster, moves: Collection[PartitionMove], rate: int | None) -> AsyncIterator[None]:
    """Sets the throttle if `rate` (bytes per second and broker) is not None, and removes it at the end.

    Removes it also after a failure or a cancellation.
    """
    if rate is None:
        yield
        return
    try:
        await set_throttle(cluster, moves, rate)
        yield
    finally:
        with trio.move_on_after(REMOVAL_SECONDS, shield=True):
            await remove_throttle(cluster, moves)


async def set_throttle(cluster: Cluster, moves: Collection[PartitionMove], rate: int) -> None:
    for topic, of_topic in _by_topic(moves).items():
        leaders = [f"{move.partition}:{broker_id}" for move in of_topic for broker_id in move.before]
        followers = [f"{move.partition}:{broker_id}" for move in of_topic for broker_id in move.adding]
        changes = [_set(LEADER_REPLICAS, ",".join(leaders)), _set(FOLLOWER_REPLICAS, ",".join(followers))]
        await _alter(cluster, ConfigResourceType.TOPIC, topic, changes)
    for broker_id in _live_brokers(cluster, moves):
        rates = [_set(LEADER_RATE, str(rate)), _set(FOLLOWER_RATE, str(rate))]
        await _alter(cluster, ConfigResourceType.BROKER, str(broker_id), rates)


async def remove_throttle(cluster: Cluster, moves: Collection[PartitionMove]) -> None:
    """Removes the throttle of all brokers and topics of the moves.

    Raises UserError if a config could not be removed, after it has removed the others.
    """
    rates = [ConfigChange(ConfigOperation.DELETE, name) for name in (LEADER_RATE, FOLLOWER_RATE)]
    replicas = [ConfigChange(ConfigOperation.DELETE, name) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    resources = [
        *((ConfigResourceType.BROKER, str(broker_id), rates) for broker_id in _live_brokers(cluster, moves)),
        *((ConfigResourceType.TOPIC, topic, replicas) for topic in _by_topic(moves)),
    ]
    problem: UserError | None = None
    for resource_type, name, changes in resources:
        try:
            await _alter(cluster, resource_type, name, changes)
        except UserError as failure:
            kind = resource_type.name.lower()
            options = " ".join(f"--delete {change.name}" for change in changes)
            problem = problem or UserError(
                f"The throttle of {kind} {name} could not be removed: {failure}. "
                f"Run 'kbroker configs alter {kind} {name} {options}'."
            )
    if problem is not None:
        raise problem


def _set(name: str, value: str) -> ConfigChange:
    return ConfigChange(ConfigOperation.SET, name, value)


def _by_topic(moves: Collection[PartitionMove]) -> dict[str, list[PartitionMove]]:
    """Returns the moves that copy records, by topic."""
    topics = defaultdict(list)
    for move in moves:
        if move.adding:
            topics[move.topic].append(move)
    return topics


def _live_brokers(cluster: Cluster, moves: Collection[PartitionMove]) -> list[int]:
    participants = {broker_id for move in moves if move.adding for broker_id in (*move.before, *move.after)}
    return sorted(participants & cluster.brokers.keys())


async def _alter(
    cluster: Cluster, resource_type: ConfigResourceType, name: str, changes: Sequence[ConfigChange]
) -> None:
    """Retries while the connection fails. A topic that has been deleted meanwhile needs no change."""
    backoff = cluster.backoff()
    while True:
        try:
            await alter_configs(cluster, resource_type, name, changes)
        except ConnectionFailed as failure:
            await backoff.pause(failure)
            await cluster.refresh([])
        except BrokerRefusal as refusal:
            if refusal.code not in _MISSING:
                raise
            return
        else:
            return
