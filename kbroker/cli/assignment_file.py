"""Files with the replicas of partitions, in the format of kafka-reassign-partitions.

{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, Final

from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.reassignment.layout import PartitionMove
    from kbroker.names import TopicPartition

__all__ = ["format_assignment", "read_assignment"]

_ANY_DIRECTORY: Final = "any"


def read_assignment(file: IO[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the replicas of each partition in the file, the preferred leader first."""
    try:
        content: Any = json.load(file)
        entries = [_read_entry(entry) for entry in content["partitions"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f'{file.name} must contain {{"partitions": [{{"topic": "orders", "partition": 0, "replicas": [1, 2]}}]}}: '
            f"{type(problem).__name__} {problem}"
        ) from None
    if not entries:
        raise UserError(f"{file.name} has no partitions")
    assignment = dict(entries)
    if len(assignment) < len(entries):
        raise UserError(f"{file.name} has a partition twice")
    return assignment


def _read_entry(entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    topic, partition, replicas = entry["topic"], entry["partition"], entry["replicas"]
    if not isinstance(topic, str):
        raise TypeError("topic must be a text")
    if not all(type(number) is int and number >= 0 for number in (partition, *replicas)):
        raise TypeError("partition and replicas must be numbers")
    if not replicas or len(set(replicas)) < len(replicas):
        raise ValueError(f"replicas of {topic}-{partition} must be different brokers")
    if any(directory != _ANY_DIRECTORY for directory in entry.get("log_dirs", ())):
        raise ValueError("log_dirs other than any: use kafka-reassign-partitions to choose directories")
    return (topic, partition), tuple(replicas)


def format_assignment(moves: Iterable[PartitionMove]) -> str:
    """Returns the content of a file with the replicas that partitions have before their moves."""
    partitions = [{"topic": move.topic, "partition": move.partition, "replicas": list(move.before)} for move in moves]
    return json.dumps({"version": 1, "partitions": partitions}) + "\n"
