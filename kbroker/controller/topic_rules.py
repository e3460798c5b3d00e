"""What may be created: Kafka's rules for new topics and new partitions, each with its error code.

Pure: they look at an image and answer with a Topic as it shall be, or with a Refusal as a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kbroker.config import BrokerConfig, validate_topic_configs
from kbroker.controller.election import initial_state
from kbroker.controller.image import Image, Topic
from kbroker.controller.placement import place_replicas
from kbroker.errors import Refusal
from kbroker.names import RandomBytes, random_uuid, topic_name_problem
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["DEFAULT", "MAX_PARTITIONS_AT_ONCE", "NewTopic", "existing_topic_refusal", "plan_partitions", "plan_topic"]

DEFAULT: Final = -1
"""As a count of partitions or replicas: the broker's own default."""

# Kafka's limit for one request; it also keeps a topic's node far below the size that a tree takes.
MAX_PARTITIONS_AT_ONCE: Final = 10_000

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A wish; either counts or an assignment (partition -> brokers, the first of which is to lead)."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


def plan_topic(new: NewTopic, image: Image, config: BrokerConfig, random_bytes: RandomBytes) -> Topic | Refusal:
    refusal = _name_refusal(new.name, image) or _configs_refusal(new.configs)
    if refusal is not None:
        return refusal
    placed = _assigned(new, image) if new.assignment else _counted(new, image, config, random_bytes)
    if isinstance(placed, Refusal):
        return placed
    states = {replicas: initial_state(replicas, image.brokers, image.controller_epoch) for replicas in set(placed)}
    return Topic(
        name=new.name,
        id=random_uuid(random_bytes),
        partitions=tuple(states[replicas] for replicas in placed),
        configs={name: text for name, text in new.configs.items() if text is not None},
    )


def plan_partitions(
    topic: Topic, total: int, assignment: Sequence[Sequence[int]] | None, image: Image
) -> tuple[Replicas, ...] | Refusal:
    """Where the partitions that the topic lacks to the total shall live."""
    current = len(topic.partitions)
    if total == current:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if total < current:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {current} partition(s); {total} would not be an increase.",
        )
    if total - current > MAX_PARTITIONS_AT_ONCE:
        return _too_many(total - current)
    if assignment is None:
        return tuple(_continued(topic, total - current, image))
    if len(assignment) != total - current:
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{total - current} partition(s) are to be added, but {len(assignment)} assignment(s) were given.",
        )
    placed = tuple(tuple(replicas) for replicas in assignment)
    return _replicas_refusal(placed, image.brokers, topic.replication_factor) or placed


def _name_refusal(name: str, image: Image) -> Refusal | None:
    problem = topic_name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    other = name if name in image.topics else image.colliding_topic(name)
    return None if other is None else existing_topic_refusal(name, other)


def existing_topic_refusal(name: str, existing: str) -> Refusal:
    """The topic is there, or another is whose name differs only in dots and underscores."""
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
            ErrorCode.INVALID_REQUEST, "Partitions are assigned to brokers: their number must be left at -1."
        )
    if new.replication_factor != DEFAULT:
        return Refusal(
            ErrorCode.INVALID_REQUEST, "Partitions are assigned to brokers: the replication factor must be left at -1."
        )
    if len(new.assignment) > MAX_PARTITIONS_AT_ONCE:
        return _too_many(len(new.assignment))
    if sorted(new.assignment) != list(range(len(new.assignment))):
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Assigned partitions must be numbered from 0, without a gap."
        )
    placed = tuple(tuple(new.assignment[index]) for index in range(len(new.assignment)))
    return _replicas_refusal(placed, image.brokers, len(placed[0])) or placed


def _replicas_refusal(placed: Sequence[Replicas], brokers: Collection[int], replication_factor: int) -> Refusal | None:
    for replicas in placed:
        problem = None
        if not replicas:
            problem = "A partition is assigned to no broker."
        elif len(set(replicas)) != len(replicas):
            problem = f"A partition is assigned to one broker twice: {list(replicas)}"
        elif len(replicas) != replication_factor:
            problem = f"A partition has {len(replicas)} replica(s), others of the topic have {replication_factor}."
        elif unknown := [replica for replica in replicas if replica not in brokers]:
            problem = f"A partition is assigned to brokers that are not there: {unknown}"
        if problem is not None:
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return None


def _counted(
    new: NewTopic, image: Image, config: BrokerConfig, random_bytes: RandomBytes
) -> tuple[Replicas, ...] | Refusal:
    partitions = config.num_partitions if new.partitions == DEFAULT else new.partitions
    factor = config.default_replication_factor if new.replication_factor == DEFAULT else new.replication_factor
    if partitions <= 0:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0, or -1 for the default."
        )
    if factor <= 0:
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 for the default."
        )
    if partitions > MAX_PARTITIONS_AT_ONCE:
        return _too_many(partitions)
    if factor > len(image.brokers):
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is larger than the number of available brokers, {len(image.brokers)}.",
        )
    start, shift = (int.from_bytes(random_bytes(4), "big") % len(image.brokers) for _ in range(2))
    return tuple(
        place_replicas(list(image.brokers), partitions=partitions, replication_factor=factor, start=start, shift=shift)
    )


def _continued(topic: Topic, count: int, image: Image) -> list[Replicas]:
    """The rounds that the topic began are gone on with, so that leaders stay evenly spread."""
    brokers = sorted(image.brokers)
    preferred = topic.partitions[0].replicas[0]
    start = brokers.index(preferred) if preferred in brokers else 0
    return place_replicas(
        brokers,
        partitions=count,
        replication_factor=min(topic.replication_factor, len(brokers)),
        start=start,
        shift=start,
        first_partition=len(topic.partitions),
    )


def _too_many(partitions: int) -> Refusal:
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"{partitions} partitions are more than can be created at once: at most {MAX_PARTITIONS_AT_ONCE}.",
    )
