"""The records of `__consumer_offsets` that groups write and read, in Kafka's format.

Keys begin with an INT16, the record type; values begin with an INT16, the version. Offsets are encoded and decoded by
hand for speed: a start may read a million. Versions written are those of Kafka 3.9 and 4.1: 3 for groups and offsets, 1
for offsets with an expiry time. Never changes state: see hard_state.py.
"""

from __future__ import annotations

from struct import Struct, error
from sys import intern
from typing import Any, Final, NamedTuple

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.group_records import GROUP_METADATA_VALUE, OFFSET_COMMIT_VALUE, MemberMetadata
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = [
    "GROUP_METADATA",
    "LEGACY_OFFSET_COMMIT",
    "NO_TIMESTAMP",
    "OFFSET_COMMIT",
    "CommittedOffset",
    "StoredGroup",
    "StoredMember",
    "UnreadableRecord",
    "group_record",
    "group_tombstone",
    "offset_record",
    "offset_tombstone",
    "read_group_key",
    "read_group_value",
    "read_offset_key",
    "read_offset_value",
    "record_type",
]

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

NO_TIMESTAMP: Final = -1

_GROUP_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_TYPE_AND_LENGTH = Struct(">hh")
_VALUE_V3_HEAD = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_VALUE_V1_HEAD = Struct(">hqh")
_INT64 = Struct(">q")
_TWO_INT64 = Struct(">qq")

_group_value = codec(GROUP_METADATA_VALUE, _GROUP_VALUE_VERSION)


class UnreadableRecord(Exception):
    """The bytes do not match their type and version, or the version is not supported."""


CommittedOffset = tuple[int, int, str, int, int]
"""Offset, leader epoch, metadata, commit timestamp, expiry timestamp (or NO_TIMESTAMP).

A plain tuple of atoms, because the garbage collector does not track these, and a broker may hold a million.
"""


class StoredMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """A classic group as in its last record."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp: int = NO_TIMESTAMP
    members: tuple[StoredMember, ...] = ()


def record_type(key: bytes) -> int:
    """Returns the type of a record, or -1 if the key is too short to have one."""
    return _INT16.unpack_from(key)[0] if len(key) >= 2 else -1


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> KeyAndValue:
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp = committed
    note = metadata.encode()
    if expire_timestamp == NO_TIMESTAMP:
        head = _VALUE_V3_HEAD.pack(_OFFSET_VALUE_VERSION, offset, leader_epoch, len(note))
        return _offset_key(group_id, topic, partition), head + note + _INT64.pack(commit_timestamp)
    head = _VALUE_V1_HEAD.pack(_OFFSET_VALUE_VERSION_WITH_EXPIRY, offset, len(note))
    times = _TWO_INT64.pack(commit_timestamp, expire_timestamp)
    return _offset_key(group_id, topic, partition), head + note + times


def offset_tombstone(group_id: str, topic: str, partition: int) -> KeyAndValue:
    return _offset_key(group_id, topic, partition), None


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (
            _TYPE_AND_LENGTH.pack(OFFSET_COMMIT, len(group)),
            group,
            _INT16.pack(len(name)),
            name,
            _INT32.pack(partition),
        )
    )


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """Returns group id, topic and partition. Also reads the legacy type 0, whose key has the same format."""
    try:
        group_end = 4 + _INT16.unpack_from(key, 2)[0]
        topic_end = group_end + 2 + _INT16.unpack_from(key, group_end)[0]
        return (
            str(key[4:group_end], "utf-8"),
            intern(str(key[group_end + 2 : topic_end], "utf-8")),
            _INT32.unpack_from(key, topic_end)[0],
        )
    except (error, UnicodeDecodeError) as problem:
        raise UnreadableRecord(f"invalid offset key: {problem}") from None


def read_offset_value(value: bytes) -> CommittedOffset:
    try:
        version = _INT16.unpack_from(value)[0]
        if version == _OFFSET_VALUE_VERSION:
            _, offset, leader_epoch, length = _VALUE_V3_HEAD.unpack_from(value)
            end = 16 + length
            timestamp = _INT64.unpack_from(value, end)[0]
            note = str(value[16:end], "utf-8") if length else ""
            return offset, leader_epoch, note, timestamp, NO_TIMESTAMP
        decoded, _ = codec(OFFSET_COMMIT_VALUE, _check_version(OFFSET_COMMIT_VALUE, version)).decode(value, 2)
    except (error, UnicodeDecodeError, PeerError) as problem:
        raise UnreadableRecord(f"invalid offset value: {problem}") from None
    return decoded.offset, decoded.leader_epoch, decoded.metadata, decoded.commit_timestamp, decoded.expire_timestamp


def group_record(group_id: str, group: StoredGroup) -> KeyAndValue:
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in group.members
    ]
    value = GROUP_METADATA_VALUE(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp,
        members=members,
    )
    return _group_key(group_id), _INT16.pack(_GROUP_VALUE_VERSION) + _group_value.to_bytes(value)


def group_tombstone(group_id: str) -> KeyAndValue:
    return _group_key(group_id), None


def _group_key(group_id: str) -> bytes:
    group = group_id.encode()
    return _TYPE_AND_LENGTH.pack(GROUP_METADATA, len(group)) + group


def read_group_key(key: bytes) -> str:
    try:
        return str(key[4 : 4 + _INT16.unpack_from(key, 2)[0]], "utf-8")
    except (error, UnicodeDecodeError) as problem:
        raise UnreadableRecord(f"invalid group key: {problem}") from None


def read_group_value(value: bytes) -> StoredGroup:
    try:
        version = _check_version(GROUP_METADATA_VALUE, _INT16.unpack_from(value)[0])
        decoded, _ = codec(GROUP_METADATA_VALUE, version).decode(value, 2)
    except (error, PeerError) as problem:
        raise UnreadableRecord(f"invalid group value: {problem}") from None
    return StoredGroup(
        decoded.protocol_type,
        decoded.generation,
        decoded.protocol,
        decoded.leader,
        decoded.current_state_timestamp,
        tuple(_read_member(member) for member in decoded.members),
    )


def _read_member(member: Any) -> StoredMember:
    rebalance_timeout_ms = member.rebalance_timeout
    return StoredMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        member.session_timeout,
        bytes(member.subscription),
        bytes(member.assignment),
    )


def _check_version(message: Any, version: int) -> int:
    if version not in message.versions:
        raise UnreadableRecord(f"unsupported version {version} of {message.name}")
    return version
