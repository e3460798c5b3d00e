"""The interpreted schemas: what a field, its versions and its null mean on the wire, byte by byte."""

from __future__ import annotations

from typing import Any

import construct
import pytest

from kbroker.protocol.types import (
    Array,
    Blob,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    String16,
    Text,
    UInt16,
    UInt32,
    Uuid,
    unsigned_varint,
)
from kbroker.protocol.versions import Message, Struct, field
from tests.protocol.all_messages import MESSAGES

every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
LEAVES = (Bool, Float64, Int8, Int16, Int32, Int64, UInt16, UInt32, Uuid)


def one(subcon: Any, **options: Any) -> Message:
    return Message("One", field("it", subcon, **options), versions=(0, 1), flexible=1)


@pytest.mark.parametrize(
    ("subcon", "value", "plain", "compact"),
    [
        (Int8, -2, b"\xfe", b"\xfe"),
        (Int16, -2, b"\xff\xfe", b"\xff\xfe"),
        (Int32, 258, b"\0\0\1\2", b"\0\0\1\2"),
        (Int64, -1, b"\xff" * 8, b"\xff" * 8),
        (UInt16, 65535, b"\xff\xff", b"\xff\xff"),
        (UInt32, 1 << 31, b"\x80\0\0\0", b"\x80\0\0\0"),
        (Float64, 1.0, b"\x3f\xf0" + bytes(6), b"\x3f\xf0" + bytes(6)),
        (Bool, True, b"\1", b"\1"),
        (Uuid, bytes(range(16)), bytes(range(16)), bytes(range(16))),
        (String, "", b"\0\0", b"\1"),
        (String, "hé", b"\0\3h\xc3\xa9", b"\4h\xc3\xa9"),
        (String, "x" * 127, b"\0\x7f" + b"x" * 127, b"\x80\1" + b"x" * 127),
        (String16, "hi", b"\0\2hi", b"\0\2hi"),
        (Bytes, b"abc", b"\0\0\0\3abc", b"\4abc"),
        (Array(Int8), [1, 2], b"\0\0\0\2\1\2", b"\3\1\2"),
        (Array(String), ["a", ""], b"\0\0\0\2\0\1a\0\0", b"\3\2a\1"),
        (Array(Array(Int8)), [[1], []], b"\0\0\0\2\0\0\0\1\1\0\0\0\0", b"\3\2\1\1"),
    ],
)
def test_types_on_the_wire(subcon: Any, value: Any, plain: bytes, compact: bytes) -> None:
    message = one(subcon)
    assert message.build(message(it=value), 0) == plain
    assert message.build(message(it=value), 1) == compact + b"\0"
    assert message.parse(plain, 0).it == value
    assert message.parse(compact + b"\0", 1).it == value


@pytest.mark.parametrize(
    ("subcon", "plain", "compact"),
    [
        (String, b"\xff\xff", b"\0"),
        (Bytes, b"\xff" * 4, b"\0"),
        (Array(Int8), b"\xff" * 4, b"\0"),
        (Struct("S", field("x", Int8)), b"\xff", b"\xff"),
    ],
)
def test_null_on_the_wire(subcon: Any, plain: bytes, compact: bytes) -> None:
    nullable, strict = one(subcon, nullable=0), one(subcon)
    for version, data in ((0, plain), (1, compact + b"\0")):
        assert nullable.build(nullable(it=None), version) == data
        assert nullable.parse(data, version).it is None
        with pytest.raises(construct.ConstructError):
            strict.build(strict(it=None), version)
        if not isinstance(subcon, Struct):
            with pytest.raises(construct.ConstructError):
                strict.parse(data, version)


def test_a_struct_that_may_be_null_has_a_byte_before_it() -> None:
    inner = Struct("S", field("x", Int8))
    message = one(inner, nullable=1)
    assert message.build(message(it=inner(x=5)), 0) == b"\5"
    assert message.build(message(it=inner(x=5)), 1) == b"\1\5\0\0"


def test_fields_exist_from_since_to_until() -> None:
    message = Message(
        "M", field("a", Int8, until=1), field("b", Int8, since=1), field("c", Int8, since=2, default=9), versions=(0, 2)
    )
    value = message(a=1, b=2, c=3)
    assert [message.build(value, version) for version in message.versions] == [b"\1", b"\1\2", b"\2\3"]
    assert message.parse(b"\1\2", 1) == message(a=1, b=2, c=9)


def test_tagged_fields_are_written_by_tag_and_only_where_they_differ_from_their_default() -> None:
    message = Message(
        "M",
        field("late", Int8, tag=7, default=-1),
        field("x", Int8),
        field("early", String, tag=2, nullable=0, default=None),
        versions=(0, 1),
        flexible=1,
    )
    assert message.build(message(x=5), 1) == b"\5\0"
    assert message.build(message(x=5, late=6, early="ab"), 1) == b"\5\2" + b"\2\3\3ab" + b"\7\1\6"
    assert message.build(message(x=5, early=""), 1) == b"\5\1" + b"\2\1\1"


def test_an_array_count_beyond_the_bytes_left_is_refused() -> None:
    for version, data in ((0, b"\0\0\0\x05abcd"), (1, b"\x06abcd")):
        with pytest.raises(construct.RangeError, match="5 elements announced, 4 bytes left"):
            one(Array(Int8)).parse(data, version)


def test_varints_of_more_than_five_bytes_are_refused() -> None:
    with pytest.raises(construct.IntegerError):
        one(String).parse(b"\x80\x80\x80\x80\x80\x01", 1)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21, (1 << 32) - 1])
def test_varints_are_as_short_as_they_can_be(value: int) -> None:
    data = unsigned_varint(value)
    assert len(data) == max(1, -(-value.bit_length() // 7))
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) == value


@every_message
def test_a_schema_is_consistent(message: Message) -> None:
    """No two fields of a struct share a version and a name or tag, and ranges lie inside the message's."""
    check_struct(message, message)


def check_struct(message: Message, struct: Struct) -> None:
    for version in message.versions:
        present = [member for member in struct.fields if member.is_in(version)]
        tags = [member.tag for member in present if member.tag is not None]
        assert len({member.name for member in present}) == len(present)
        assert len(set(tags)) == len(tags)
        assert not tags or message.is_flexible(version)
    for member in struct.fields:
        assert member.since <= message.last_version, member.name
        assert member.since <= member.until, member.name
        assert member.default_value is not None or member.is_nullable_in(message.last_version), member.name
        inner = member.subcon.element if isinstance(member.subcon, Array) else member.subcon
        if isinstance(inner, Struct):
            check_struct(message, inner)
        else:
            assert isinstance(inner, Text | Blob) or any(inner is leaf for leaf in LEAVES), member.name
