"""Kafka's rules for new topics and new partitions, each with its error code.

Pure: they take an image, and return the planned topic or a Refusal as a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import validate_topic_configs
from kbroker.controller.image import Image, TopicImage
from kbroker.controller.rules.election import initial_state
from kbroker.controller.rules.placement import place_replicas
from kbroker.controller.rules.reassignment import is_reassigning
from kbroker.errors import Refusal
from kbroker.names import RandomBytes, random_uuid, topic_name_problem
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "DEFAULT",
    "MAX_PARTITIONS_AT_ONCE",
    "NewTopic",
    "existing_topic_refusal",
    "plan_partitions",
    "plan_topic",
    "too_many_partitions",
]

DEFAULT: Final = -1
"""Number of partitions or replicas that stands for the broker's default."""

# Kafka's limit for one request. It also keeps a topic's node far below the maximum size of a node.
MAX_PARTITIONS_AT_ONCE: Final = 10_000

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, with counts or with an assignment (partition -> brokers, the preferred leader first)."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


def plan_topic(new: NewTopic, image: Image, config: BrokerConfig, random_bytes: RandomBytes) -> TopicImage | Refusal:
    refusal = _name_refusal(new.name, image) or _configs_refusal(new.configs)
    if refusal is not None:
        return refusal
    placed = _assigned(new, image) if new.assignment else _counted(new, image, config, random_bytes)
    if isinstance(placed, Refusal):
        return placed
    states = {replicas: initial_state(replicas, image.brokers, image.controller_epoch) for replicas in set(placed)}
    return TopicImage(
        name=new.name,
        id=random_uuid(random_bytes),
        partitions=tuple(states[replicas] for replicas in placed),
        configs={name: text for name, text in new.configs.items() if text is not None},
    )


def plan_partitions(
    topic: TopicImage, total: int, assignment: Sequence[Sequence[int]] | None, image: Image
) -> tuple[Replicas, ...] | Refusal:
    """Returns the replicas of each partition that must be added to reach `total`."""
    current = len(topic.partitions)
    if any(is_reassigning(partition) for partition in topic.partitions):
        return Refusal(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{topic.name}'.",
        )
    if total == current:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if total < current:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {current} partition(s); {total} would not be an increase.",
        )
    if total - current > MAX_PARTITIONS_AT_ONCE:
        return too_many_partitions()
    if assignment is None:
        return tuple(_continued(topic, total - current, image))
    if len(assignment) != total - current:
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {total - current} additional partition(s), but only {len(assignment)} assignment(s) "
            "were specified.",
        )
    placed = tuple(tuple(replicas) for replicas in assignment)
    return _replicas_refusal(placed, image.brokers, topic.replication_factor) or placed


def _name_refusal(name: str, image: Image) -> Refusal | None:
    problem = topic_name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    other = name if name in image.topics else image.colliding_topic(name)
    return None if other is None else existing_topic_refusal(name, existing=other)


def existing_topic_refusal(name: str, *, existing: str) -> Refusal:
    """Returns the refusal to create `name`. `existing`: the same name, or one that differs in dots and underscores."""
    if name == existing:
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {existing}")


def _configs_refusal(configs: Mapping[str, str | None]) -> Refusal | None:
    problem = validate_topic_configs(configs)
    return None if problem is None else Refusal(ErrorCode.INVALID_CONFIG, problem)


def _assigned(new: NewTopic, image: Image) -> tuple[Replicas, ...] | Refusal:
    assert new.assignment is not None
    if new.partitions != DEFAULT:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    if new.replication_factor != DEFAULT:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if len(new.assignment) > MAX_PARTITIONS_AT_ONCE:
        return too_many_partitions()
    if sorted(new.assignment) != list(range(len(new.assignment))):
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    placed = tuple(tuple(new.assignment[index]) for index in range(len(new.assignment)))
    return _replicas_refusal(placed, image.brokers, len(placed[0])) or placed


def _replicas_refusal(placed: Sequence[Replicas], brokers: Collection[int], replication_factor: int) -> Refusal | None:
    for replicas in placed:
        problem = None
        if not replicas:
            problem = "an empty replica list."
        elif repeated := [replica for replica in replicas if replicas.count(replica) > 1]:
            problem = f"the broker {min(repeated)} more than once."
        elif len(replicas) != replication_factor:
            problem = (
                f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
                f"which have {replication_factor} replica(s)."
            )
        elif unknown := [replica for replica in replicas if replica not in brokers]:
            problem = f"broker {min(unknown)}, but no such broker is registered."
        if problem is not None:
            message = f"The manual partition assignment includes {problem}"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return None


def _counted(
    new: NewTopic, image: Image, config: BrokerConfig, random_bytes: RandomBytes
) -> tuple[Replicas, ...] | Refusal:
    partitions = config.num_partitions if new.partitions == DEFAULT else new.partitions
    factor = config.default_replication_factor if new.replication_factor == DEFAULT else new.replication_factor
    if partitions <= 0:
        return Refusal(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if factor <= 0:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions > MAX_PARTITIONS_AT_ONCE:
        return too_many_partitions()
    if factor > len(image.brokers):
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            f"reached because only {len(image.brokers)} broker(s) are registered.",
        )
    start, shift = (int.from_bytes(random_bytes(4), "big") % len(image.brokers) for _ in range(2))
    return tuple(
        place_replicas(_racks(image), partitions=partitions, replication_factor=factor, start=start, shift=shift)
    )


def _racks(image: Image) -> dict[int, str | None]:
    return {broker.id: broker.rack for broker in image.brokers.values()}


def _continued(topic: TopicImage, count: int, image: Image) -> list[Replicas]:
    """Continues the round robin of the topic's existing partitions, so that leaders stay evenly spread."""
    brokers = sorted(image.brokers)
    preferred = topic.partitions[0].replicas[0]
    start = brokers.index(preferred) if preferred in brokers else 0
    return place_replicas(
        _racks(image),
        partitions=count,
        replication_factor=min(topic.replication_factor, len(brokers)),
        start=start,
        shift=start,
        first_partition=len(topic.partitions),
    )


def too_many_partitions() -> Refusal:
    """Returns Kafka's refusal of more than `MAX_PARTITIONS_AT_ONCE` new partitions in one request."""
    return Refusal(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
