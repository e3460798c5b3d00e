"""Whatever bytes arrive, a decoder returns or raises PeerError, and its memory stays in proportion to the bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbroker.errors import PeerError
from kbroker.protocol.compiler import runtime
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.types import Array, Bytes, Int32, String, unsigned_varint
from kbroker.protocol.versions import Field, Message, Struct, field
from tests.protocol.all_messages import BY_NAME, MESSAGES
from tests.protocol.generated_values import Smallest, filled, fullest, generated

EVERY_VERSION = [(message, version) for message in MESSAGES for version in message.versions]
every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)

# Lengths that lie: the largest and least INT16 and INT32, and the largest varints, canonical and not.
LIES = (
    b"\x7f\xff",
    b"\x80\x00",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x00",
)


def decode_or_refuse(message: Message, version: int, data: bytes) -> bool:
    """Anything but a value or a PeerError fails the test."""
    try:
        _, position = codec(message, version).decode(data)
    except PeerError:
        return False
    assert position <= len(data)
    return True


@every_message
def test_random_bytes(message: Message) -> None:
    chance = random.Random(message.name)
    for version in message.versions:
        for _ in range(40):
            decode_or_refuse(message, version, chance.randbytes(chance.randrange(60)))


@every_message
def test_bytes_of_zeros_and_of_ones(message: Message) -> None:
    for version in message.versions:
        for size in (1, 2, 7, 40, 300):
            for value in (0, 1, 0x7F, 0x80, 0xFF):
                decode_or_refuse(message, version, bytes([value]) * size)


@every_message
def test_valid_messages_with_flipped_inserted_and_removed_bytes(message: Message) -> None:
    chance = random.Random(message.name)
    for version in message.versions:
        whole = codec(message, version).to_bytes(generated(message, version, chance))[:3000]
        for _ in range(20):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                position = chance.randrange(len(data) + 1)
                match chance.randrange(3):
                    case 0:
                        data[position : position + 1] = chance.randbytes(1)
                    case 1:
                        data[position:position] = chance.randbytes(chance.randrange(1, 5))
                    case _:
                        del data[position : position + chance.randrange(1, 5)]
            decode_or_refuse(message, version, bytes(data))


@every_message
def test_every_cut_is_refused(message: Message) -> None:
    chance = random.Random(message.name)
    for version in message.versions:
        whole = codec(message, version).to_bytes(fullest(message, version))
        cuts = range(len(whole)) if len(whole) < 150 else [*chance.sample(range(len(whole)), 80), len(whole) - 1]
        for cut in cuts:
            assert not decode_or_refuse(message, version, whole[:cut]), f"v{version} cut at {cut} of {len(whole)}"


@every_message
def test_absurd_lengths_at_any_place(message: Message) -> None:
    chance = random.Random(message.name)
    for version in message.versions:
        whole = codec(message, version).to_bytes(generated(message, version, chance))[:400]
        for position in range(0, len(whole) + 1, 1 + len(whole) // 25):
            lie = chance.choice(LIES)
            decode_or_refuse(message, version, whole[:position] + lie + whole[position + len(lie) :])
            decode_or_refuse(message, version, whole[:position] + lie)


FETCH, PRODUCE, METADATA = BY_NAME["FetchRequest"], BY_NAME["ProduceRequest"], BY_NAME["MetadataRequest"]
API_VERSIONS, HEARTBEAT = BY_NAME["ApiVersionsResponse"], BY_NAME["HeartbeatRequest"]
BEFORE_TAGS = {API_VERSIONS: bytes(2) + b"\x01" + bytes(4), HEARTBEAT: b"\x01" + bytes(4) + b"\x01\x00"}

# Shapes worth keeping: each breaks a decoder that leaves out one check, and is refused for that reason.
LIARS: dict[str, tuple[Message, int, bytes, str]] = {
    "nothing": (PRODUCE, 9, b"", "index out of range|out of bounds"),
    "null where a list must be": (PRODUCE, 9, bytes(9), "topic_data may not be null"),
    "a list of 2^31 - 1 topics": (METADATA, 1, b"\x7f\xff\xff\xff", "topics announces 2147483647 elements"),
    "a list of 2^35 - 2 topics": (METADATA, 9, b"\xff\xff\xff\xff\x7f" + bytes(40), "topics announces 34359738366"),
    "a count that needs one byte more than there is": (METADATA, 9, b"\x03\x01\x00\x01", "topics announces 2 elements"),
    "a varint that never ends": (METADATA, 9, b"\xff" * 40, "varint longer than five bytes"),
    "a string of 2^31 - 2 bytes": (HEARTBEAT, 4, b"\xff\xff\xff\xff\x07abc", "group_id ends beyond the message"),
    "a string longer than any may be": (
        HEARTBEAT,
        4,
        unsigned_varint(32769) + b"x" * 32768 + bytes(4) + b"\x01\x00\x00",
        "a string of 32768 bytes",
    ),
    "a negative string length": (HEARTBEAT, 0, b"\xff\xff" + bytes(40), "group_id may not be null"),
    "a string that is not UTF-8": (HEARTBEAT, 0, b"\x00\x02\xc3\x28" + bytes(6), "invalid continuation byte"),
    "half a surrogate pair": (HEARTBEAT, 0, b"\x00\x03\xed\xa0\x80" + bytes(6), "invalid continuation byte"),
    "records that end beyond the message": (
        PRODUCE,
        3,
        b"\xff\xff" + bytes(6) + b"\0\0\0\1" + b"\0\1x" + b"\0\0\0\1" + bytes(4) + b"\x7f\xff\xff\xff",
        "records ends beyond the message",
    ),
    "2^35 tags": (HEARTBEAT, 4, BEFORE_TAGS[HEARTBEAT] + b"\xff\xff\xff\xff\x7f", "34359738367 unknown tagged fields"),
    "more tags than there are": (HEARTBEAT, 4, BEFORE_TAGS[HEARTBEAT] + b"\x05", "index out of range|out of bounds"),
    "an unknown tag longer than the message": (
        HEARTBEAT,
        4,
        BEFORE_TAGS[HEARTBEAT] + b"\x01\x63\xff\x7f",
        "a tagged field ends beyond the message",
    ),
    "a known tag longer than the message": (
        API_VERSIONS,
        3,
        BEFORE_TAGS[API_VERSIONS] + b"\x01\x03\x7f\x01",
        "a tagged field ends beyond the message",
    ),
    "a known tag longer than its field": (
        API_VERSIONS,
        3,
        BEFORE_TAGS[API_VERSIONS] + b"\x01\x03\x02\x01\x01",
        "longer or shorter than it says",
    ),
    "a known tag shorter than its field": (
        API_VERSIONS,
        3,
        BEFORE_TAGS[API_VERSIONS] + b"\x01\x01\x02" + bytes(9),
        "longer or shorter than it says",
    ),
    "a list in a tag that reads beyond the tag": (
        API_VERSIONS,
        3,
        BEFORE_TAGS[API_VERSIONS] + b"\x01\x00\x01\x03" + (b"\x01" + bytes(5)) * 2,
        "longer or shorter than it says",
    ),
    "null in a tag": (
        API_VERSIONS,
        3,
        BEFORE_TAGS[API_VERSIONS] + b"\x01\x00\x01\x00",
        "supported_features may not be null",
    ),
}


@pytest.mark.parametrize("name", LIARS)
def test_every_kind_of_lie_is_refused(name: str) -> None:
    message, version, data, reason = LIARS[name]
    for buffer in (data, bytearray(data), memoryview(data)):
        with pytest.raises(PeerError, match=reason):
            codec(message, version).decode(buffer)


@settings(max_examples=600, derandomize=True, deadline=None, database=None)
@given(of=st.sampled_from(EVERY_VERSION), data=st.binary(max_size=200))
@example(of=(FETCH, 12), data=b"\xff\xff\xff\xff\xff")
@example(of=(PRODUCE, 13), data=bytes(200))
def test_bytes_that_shrink(of: tuple[Message, int], data: bytes) -> None:
    decode_or_refuse(*of, data)


@every_message
def test_memory_stays_in_proportion_to_the_bytes(message: Message) -> None:
    """Each list in turn is filled with the smallest elements there are."""
    version = message.last_version
    for path in lists(message, version):
        data = flood(message, version, path, size=4000)
        assert peak_memory(message, version, data) < 64 * len(data) + 16384, [each.name for each in path]


def lists(struct: Struct, version: int, outer: tuple[Field, ...] = ()) -> Iterator[tuple[Field, ...]]:
    """The fields on the way to every list in a message."""
    for each in (*struct.untagged(version), *struct.tagged(version)):
        inner = each.subcon
        if isinstance(inner, Array):
            yield (*outer, each)
            inner = inner.element
        if isinstance(inner, Struct):
            yield from lists(inner, version, (*outer, each))


class Emptiest(Smallest):
    """Empty, not null: null stops the way to a list."""

    def is_null(self) -> bool:
        return False


def flood(message: Message, version: int, path: tuple[Field, ...], size: int) -> bytes:
    *outer, last = path
    root = value = filled(message, version, Emptiest())
    for each in outer:
        inner = each.subcon.element if isinstance(each.subcon, Array) else each.subcon
        made = filled(inner, version, Emptiest())
        setattr(value, each.name, [made] if isinstance(each.subcon, Array) else made)
        value = made
    element = filled(last.subcon.element, version, Emptiest())
    sizes = []
    for count in (1, 2):
        setattr(value, last.name, [element] * count)
        sizes.append(len(codec(message, version).to_bytes(root)))
    setattr(value, last.name, [element] * (size // (sizes[1] - sizes[0])))
    return codec(message, version).to_bytes(root)


def peak_memory(message: Message, version: int, data: bytes) -> int:
    """The most that decoding holds at a time, whether it ends well or not."""
    decode_or_refuse(message, version, data)  # whatever is made once is made now
    tracemalloc.start()
    try:
        decode_or_refuse(message, version, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_of_more_elements_than_allowed_is_refused_before_it_is_built() -> None:
    count = runtime.MAX_ELEMENTS + 1
    data = b"\x00" + bytes(6) + unsigned_varint(count + 1) + bytes(3 * count + 1)
    with pytest.raises(PeerError, match=f"topic_data announces {count} elements"):
        codec(PRODUCE, 9).decode(data)
    assert peak_memory(PRODUCE, 9, data) < 16384


def test_elements_of_nested_and_tagged_lists_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MAX_ELEMENTS", 100)
    row = Struct("Row", field("numbers", Array(Int32)), field("more", Array(Int32), tag=0))
    table = Message("Table", field("rows", Array(row)), field("rest", Array(row), tag=3), versions=(0, 0), flexible=0)

    def encoded(rows: list[Any], rest: list[Any]) -> bytes:
        return codec(table, 0).to_bytes(table(rows=rows, rest=rest))

    full = [row(numbers=[0] * 30, more=[0] * 9)]
    codec(table, 0).decode(encoded(full, [row(numbers=[0] * 59)]))
    codec(table, 0).decode(encoded([row(numbers=[0] * 99)], []))
    for rows, rest in ((full, [row(numbers=[0] * 60)]), (full, [row(more=[0] * 60)]), ([row(numbers=[0] * 100)], [])):
        with pytest.raises(PeerError, match="elements"):
            codec(table, 0).decode(encoded(rows, rest))


def test_a_length_is_checked_before_anything_is_allocated_for_it() -> None:
    sized = Message(
        "Sized",
        field("text", String),
        field("data", Bytes),
        field("numbers", Array(Int32)),
        versions=(0, 1),
        flexible=1,
    )
    for version, length in ((0, b"\x7f\xff\xff\xff"), (1, b"\xff\xff\xff\xff\x07")):
        for before in (b"", b"\x00\x00" if version == 0 else b"\x01", b"\x00" * 6 if version == 0 else b"\x01\x01"):
            data = before + length + bytes(100)
            assert not decode_or_refuse(sized, version, data)
            assert peak_memory(sized, version, data) < 8192
