"""The records of the consumer protocol (KIP-848) in `__consumer_offsets`, in Kafka's format.

type  key                     value
3     group                   group epoch, hash of the subscribed topics' metadata
4     group                   replaced by the hash in type 3; ignored
5     group, member           the member and its subscription
6     group                   epoch of the target assignment
7     group, member           the member's target assignment
8     group, member           the member's current assignment, and partitions that it must revoke
16    group, regex            the topics that match the regular expression

Encodes and decodes only: consumer_state.py replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct, error
from typing import Any, Final, NamedTuple

from kbroker.errors import PeerError
from kbroker.group.records import UnreadableRecord
from kbroker.protocol import group_records as schemas
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = [
    "CURRENT_ASSIGNMENT",
    "GROUP",
    "MEMBER",
    "NOTHING",
    "REGULAR_EXPRESSION",
    "STABLE",
    "TARGET_EPOCH",
    "TARGET_MEMBER",
    "UNRELEASED",
    "UNREVOKED",
    "Assignment",
    "ClassicSide",
    "ConsumerMember",
    "CurrentAssignment",
    "ResolvedPattern",
    "as_assignment",
    "as_topic_partitions",
    "current_assignment_record",
    "epoch_record",
    "member_record",
    "read_key",
    "read_value",
    "regular_expression_record",
    "target_epoch_record",
    "target_member_record",
    "tombstone",
]

GROUP: Final = 3
MEMBER: Final = 5
TARGET_EPOCH: Final = 6
TARGET_MEMBER: Final = 7
CURRENT_ASSIGNMENT: Final = 8
REGULAR_EXPRESSION: Final = 16

STABLE: Final = 0
UNREVOKED: Final = 1
"""The member owns partitions that it must revoke first."""
UNRELEASED: Final = 2
"""The member waits for partitions that other members have not revoked yet."""

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions. Immutable, and without empty sets."""

NOTHING: Final[Assignment] = {}

_INT16 = Struct(">h")
_VERSION_0 = _INT16.pack(0)
_NO_TAGS = b"\0"
# Kafka writes a null ClassicMemberMetadata explicitly: one tag, with the number 0 and one byte, 0 for null.
_NULL_CLASSIC_METADATA = b"\1\0\1\0"


class ClassicSide(NamedTuple):
    """The additional data of a member that uses the classic protocol (Kafka: ClassicMemberMetadata)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Sorted, so that a different order in a heartbeat is not a different subscription."""
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicSide | None = None


class CurrentAssignment(NamedTuple):
    epoch: int
    previous_epoch: int
    state: int
    assigned: Assignment = NOTHING
    pending_revocation: Assignment = NOTHING

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == STABLE and self.epoch == target_epoch


class ResolvedPattern(NamedTuple):
    topics: frozenset[str]
    version: int
    """Version of the metadata image that the pattern was matched against."""
    timestamp: int


def as_assignment(topic_partitions: Iterable[Any]) -> Assignment:
    found: dict[bytes, frozenset[int]] = {}
    for topic in topic_partitions:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def as_topic_partitions(struct: Any, assignment: Assignment) -> list[Any]:
    """Returns an assignment as a list of `struct`, the message's or record's own type for it."""
    return [struct(topic_id=topic_id, partitions=sorted(partitions)) for topic_id, partitions in assignment.items()]


def _key(kind: int, group_id: str, second: str | None = None) -> bytes:
    group = group_id.encode()
    key = _INT16.pack(kind) + _INT16.pack(len(group)) + group
    if second is None:
        return key
    part = second.encode()
    return key + _INT16.pack(len(part)) + part


def tombstone(kind: int, group_id: str, second: str | None = None) -> KeyAndValue:
    return _key(kind, group_id, second), None


def _value(schema: Any, **fields: Any) -> bytes:
    return _VERSION_0 + codec(schema, 0).to_bytes(schema(**fields))


def epoch_record(group_id: str, *, epoch: int, metadata_hash: int) -> KeyAndValue:
    value = _value(schemas.CONSUMER_GROUP_METADATA_VALUE, epoch=epoch, metadata_hash=metadata_hash)
    return _key(GROUP, group_id), value


def member_record(group_id: str, member_id: str, member: ConsumerMember) -> KeyAndValue:
    classic = member.classic
    value = _value(
        schemas.CONSUMER_GROUP_MEMBER_METADATA_VALUE,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if classic is None else _classic_side(classic),
    )
    if classic is None:
        value = value.removesuffix(_NO_TAGS) + _NULL_CLASSIC_METADATA
    return _key(MEMBER, group_id, member_id), value


def _classic_side(classic: ClassicSide) -> Any:
    protocols = [schemas.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols]
    return schemas.ClassicMemberMetadata(session_timeout_ms=classic.session_timeout_ms, supported_protocols=protocols)


def target_epoch_record(group_id: str, epoch: int) -> KeyAndValue:
    value = _value(schemas.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA_VALUE, assignment_epoch=epoch)
    return _key(TARGET_EPOCH, group_id), value


def target_member_record(group_id: str, member_id: str, target: Assignment) -> KeyAndValue:
    value = _value(
        schemas.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER_VALUE,
        topic_partitions=as_topic_partitions(schemas.TopicPartition, target),
    )
    return _key(TARGET_MEMBER, group_id, member_id), value


def current_assignment_record(group_id: str, member_id: str, current: CurrentAssignment) -> KeyAndValue:
    value = _value(
        schemas.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT_VALUE,
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=as_topic_partitions(schemas.TopicPartitions, current.assigned),
        partitions_pending_revocation=as_topic_partitions(schemas.TopicPartitions, current.pending_revocation),
    )
    return _key(CURRENT_ASSIGNMENT, group_id, member_id), value


def regular_expression_record(group_id: str, regex: str, resolved: ResolvedPattern) -> KeyAndValue:
    value = _value(
        schemas.CONSUMER_GROUP_REGULAR_EXPRESSION_VALUE,
        topics=sorted(resolved.topics),
        version=resolved.version,
        timestamp=resolved.timestamp,
    )
    return _key(REGULAR_EXPRESSION, group_id, regex), value


def read_key(key: bytes) -> tuple[str, str]:
    """Returns the group id, and the member id or regex (empty if the key has none).

    Raises UnreadableRecord if the key is malformed.
    """
    try:
        end = 4 + _INT16.unpack_from(key, 2)[0]
        group_id = str(key[4:end], "utf-8")
        if len(key) == end:
            return group_id, ""
        return group_id, str(key[end + 2 : end + 2 + _INT16.unpack_from(key, end)[0]], "utf-8")
    except (error, UnicodeDecodeError) as problem:
        raise UnreadableRecord(f"invalid consumer group key: {problem}") from None


def read_value(kind: int, value: bytes) -> Any:
    """Decodes the value of a record, into the type that its function above takes.

    Raises UnreadableRecord if the value is malformed.
    """
    schema = schemas.RECORD_TYPES[kind][1]
    if kind == MEMBER and value.endswith(_NULL_CLASSIC_METADATA):
        value = value.removesuffix(_NULL_CLASSIC_METADATA) + _NO_TAGS
    try:
        version = _INT16.unpack_from(value)[0]
        if version not in schema.versions:
            raise UnreadableRecord(f"unsupported version {version} of {schema.name}")
        return _READERS[kind](codec(schema, version).decode(value, 2)[0])
    except (error, PeerError) as problem:
        raise UnreadableRecord(f"invalid consumer group value: {problem}") from None


def _read_member(value: Any) -> ConsumerMember:
    classic = value.classic_member_metadata
    return ConsumerMember(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(sorted(value.subscribed_topic_names)),
        value.subscribed_topic_regex,
        value.rebalance_timeout_ms,
        value.server_assignor,
        None if classic is None else _read_classic_side(classic),
    )


def _read_classic_side(classic: Any) -> ClassicSide:
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols)
    return ClassicSide(classic.session_timeout_ms, protocols)


def _read_current(value: Any) -> CurrentAssignment:
    return CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        value.state,
        as_assignment(value.assigned_partitions),
        as_assignment(value.partitions_pending_revocation),
    )


_READERS: Final[dict[int, Callable[[Any], Any]]] = {
    GROUP: lambda value: (value.epoch, value.metadata_hash),
    MEMBER: _read_member,
    TARGET_EPOCH: lambda value: value.assignment_epoch,
    TARGET_MEMBER: lambda value: as_assignment(value.topic_partitions),
    CURRENT_ASSIGNMENT: _read_current,
    REGULAR_EXPRESSION: lambda value: ResolvedPattern(frozenset(value.topics), value.version, value.timestamp),
}
