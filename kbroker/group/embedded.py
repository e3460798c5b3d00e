"""What consumers of the classic protocol put into its opaque bytes: subscriptions and assignments, read and written.

A broker needs them only where both protocols meet. An INT16 opens both: their version, of which later ones only add.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error
from typing import NamedTuple

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION, TopicPartitionAssignment

__all__ = ["MalformedEmbedding", "Subscription", "encode_assignment", "read_assignment", "read_subscription"]

_VERSION = Struct(">h")
_LATEST = 3


class MalformedEmbedding(Exception):
    """Bytes that are not of Kafka's consumer protocol."""


class Subscription(NamedTuple):
    version: int
    topics: list[str]
    owned: list[tuple[str, list[int]]]
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription:
    version = _version(data)
    try:
        found, _ = codec(SUBSCRIPTION, version).decode(data, _VERSION.size)
    except PeerError as problem:
        raise MalformedEmbedding(str(problem)) from None
    owned = [(each.topic, each.partitions) for each in found.owned_partitions]
    return Subscription(version, found.topics, owned, found.rack_id)


def read_assignment(data: bytes) -> list[tuple[str, list[int]]]:
    """No bytes: a member that has been given nothing yet."""
    if not data:
        return []
    try:
        found, _ = codec(ASSIGNMENT, _version(data)).decode(data, _VERSION.size)
    except PeerError as problem:
        raise MalformedEmbedding(str(problem)) from None
    return [(each.topic, each.partitions) for each in found.assigned_partitions]


def encode_assignment(partitions: Mapping[str, list[int]], version: int) -> bytes:
    assigned = [TopicPartitionAssignment(topic=name, partitions=indexes) for name, indexes in partitions.items()]
    return _VERSION.pack(version) + codec(ASSIGNMENT, version).to_bytes(ASSIGNMENT(assigned_partitions=assigned))


def _version(data: bytes) -> int:
    try:
        version: int = _VERSION.unpack_from(data)[0]
    except error:
        raise MalformedEmbedding("too short") from None
    if version < 0:
        raise MalformedEmbedding(f"version {version}")
    return min(version, _LATEST)
