"""The records of `__consumer_offsets` that a group of the consumer protocol (KIP-848) is made of, in Kafka's format.

type  key                     value
3     group                   epoch of the group, hash of the topics that it reads
4     group                   what type 3's hash has replaced; read over
5     group, member           who the member is, what it subscribes to
6     group                   epoch of the target assignment
7     group, member           the target: what the member shall have
8     group, member           the current assignment: what it has, and what it is to give back
16    group, regex            the topics that match it

Values only: see consumer_state.py for what replay makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct, error
from typing import Any, Final, NamedTuple

from kbroker.errors import PeerError
from kbroker.group.records import UnreadableRecord
from kbroker.group.step import KeyAndValue
from kbroker.protocol import group_records as schemas
from kbroker.protocol.compiler.load import codec

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
"""It holds partitions that it must give back first."""
UNRELEASED: Final = 2
"""It waits for partitions that another member has not given back."""

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions; never changed once made, and without empty sets."""

NOTHING: Final[Assignment] = {}

_INT16 = Struct(">h")
_VERSION_0 = _INT16.pack(0)
_NO_TAGS = b"\0"
# Kafka writes that a member has no classic side: one tag, its number 0, one byte, which is 0 for null.
_NO_CLASSIC_SIDE = b"\1\0\1\0"


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol has said of itself."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    """Sorted, so that the order in which a client names them means nothing."""
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
    """Of the metadata that it was matched with."""
    timestamp: int


def as_assignment(topic_partitions: Iterable[Any]) -> Assignment:
    found: dict[bytes, frozenset[int]] = {}
    for each in topic_partitions:
        if each.partitions:
            found[each.topic_id] = found.get(each.topic_id, frozenset()) | frozenset(each.partitions)
    return found


def as_topic_partitions(struct: Any, assignment: Assignment) -> list[Any]:
    """In the struct that a message uses for them; every one has the same two fields."""
    return [struct(topic_id=each, partitions=sorted(partitions)) for each, partitions in assignment.items()]


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


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KeyAndValue:
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
        value = value.removesuffix(_NO_TAGS) + _NO_CLASSIC_SIDE
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
    """Group and member (or regex); the second is empty where there is none."""
    try:
        end = 4 + _INT16.unpack_from(key, 2)[0]
        group_id = str(key[4:end], "utf-8")
        if len(key) == end:
            return group_id, ""
        return group_id, str(key[end + 2 : end + 2 + _INT16.unpack_from(key, end)[0]], "utf-8")
    except (error, UnicodeDecodeError) as problem:
        raise UnreadableRecord(f"the key of a consumer group: {problem}") from None


def read_value(kind: int, value: bytes) -> Any:
    """What the functions above were given: an epoch and a hash, a ConsumerMember, an Assignment ..."""
    schema = schemas.RECORD_TYPES[kind][1]
    if kind == MEMBER and value.endswith(_NO_CLASSIC_SIDE):
        value = value.removesuffix(_NO_CLASSIC_SIDE) + _NO_TAGS
    try:
        version = _INT16.unpack_from(value)[0]
        if version not in schema.versions:
            raise UnreadableRecord(f"{schema.name} of version {version}")
        return _READERS[kind](codec(schema, version).decode(value, 2)[0])
    except (error, PeerError) as problem:
        raise UnreadableRecord(f"the value of a consumer group: {problem}") from None


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
    protocols = tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols)
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
