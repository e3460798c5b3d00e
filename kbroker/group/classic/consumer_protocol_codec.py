"""The consumer protocol that is embedded in the classic protocol's opaque bytes: subscriptions and assignments.

A broker needs it only in groups that have members of both protocols. The first two bytes (INT16) are the version; later
versions only append fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error
from typing import NamedTuple

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION, TopicPartitionAssignment

__all__ = ["MalformedConsumerProtocol", "Subscription", "encode_assignment", "read_assignment", "read_subscription"]

_VERSION = Struct(">h")
_LATEST = 3


class MalformedConsumerProtocol(Exception):
    """The bytes do not follow the consumer protocol."""


class Subscription(NamedTuple):
    version: int
    topics: list[str]
    owned: list[tuple[str, list[int]]]
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription:
    """Decodes the metadata of a member. Raises MalformedConsumerProtocol if it is invalid."""
    version = _version(data)
    try:
        found, _ = codec(SUBSCRIPTION, version).decode(data, _VERSION.size)
    except PeerError as problem:
        raise MalformedConsumerProtocol(str(problem)) from None
    owned = [(topic.topic, topic.partitions) for topic in found.owned_partitions]
    return Subscription(version, found.topics, owned, found.rack_id)


def read_assignment(data: bytes) -> list[tuple[str, list[int]]]:
    """Returns topics with their partitions; an empty list if the member has no assignment yet."""
    if not data:
        return []
    try:
        found, _ = codec(ASSIGNMENT, _version(data)).decode(data, _VERSION.size)
    except PeerError as problem:
        raise MalformedConsumerProtocol(str(problem)) from None
    return [(topic.topic, topic.partitions) for topic in found.assigned_partitions]


def encode_assignment(partitions: Mapping[str, list[int]], version: int) -> bytes:
    assigned = [TopicPartitionAssignment(topic=name, partitions=indexes) for name, indexes in partitions.items()]
    return _VERSION.pack(version) + codec(ASSIGNMENT, version).to_bytes(ASSIGNMENT(assigned_partitions=assigned))


def _version(data: bytes) -> int:
    try:
        version: int = _VERSION.unpack_from(data)[0]
    except error:
        raise MalformedConsumerProtocol("too short") from None
    if version < 0:
        raise MalformedConsumerProtocol(f"version {version}")
    return min(version, _LATEST)
