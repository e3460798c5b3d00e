"""The compiled codecs against the interpreted construct: same bytes, same values, same refusals."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import construct
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.errors import PeerError
from kbroker.protocol import types
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.compiler.plan import least_size, plan
from kbroker.protocol.types import Array, Bytes, Int8, Int32, String, Uuid, unsigned_varint
from kbroker.protocol.values import Value
from kbroker.protocol.versions import Message, Struct, field
from tests.protocol.all_messages import BY_NAME, MESSAGES
from tests.protocol.generated_values import fullest, generated, smallest, some_values

EXAMPLES = 8
EVERY_VERSION = [(message, version) for message in MESSAGES for version in message.versions]
every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)

# What an encoder of ours may say to a value that no schema allows. A peer never causes these.
REFUSALS = (struct.error, TypeError, ValueError, AttributeError)


def check_agreement(message: Message, version: int, value: Any) -> None:
    compiled = codec(message, version)
    data = message.build(value, version)
    assert compiled.to_bytes(value) == data
    decoded, position = compiled.decode(data)
    assert position == len(data)
    assert decoded == value
    assert message.parse(data, version) == value


@every_message
def test_compiled_and_interpreted_agree_on_generated_values(message: Message) -> None:
    for version in message.versions:
        for value in some_values(message, version, EXAMPLES):
            check_agreement(message, version, value)


@settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(of=st.sampled_from(EVERY_VERSION), chance=st.randoms(use_true_random=False))
def test_compiled_and_interpreted_agree_on_values_that_shrink(of: tuple[Message, int], chance: random.Random) -> None:
    message, version = of
    check_agreement(message, version, generated(message, version, chance))


@every_message
def test_a_message_is_decoded_where_it_stands_in_any_kind_of_buffer(message: Message) -> None:
    for version in message.versions:
        value = fullest(message, version)
        data = b"before" + message.build(value, version) + b"behind"
        for buffer in (data, bytearray(data), memoryview(data)):
            assert codec(message, version).decode(buffer, 6) == (value, len(data) - 6)


def test_fields_of_other_versions_hold_their_defaults_and_are_not_written() -> None:
    message = BY_NAME["FetchRequest"]
    value = fullest(message, 18)
    decoded, _ = codec(message, 0).decode(codec(message, 0).to_bytes(value))
    assert (decoded.max_bytes, decoded.session_epoch, decoded.rack_id) == (0x7FFFFFFF, -1, "")
    assert decoded.replica_state == message.fields[2].default()


@every_message
def test_both_refuse_null_where_it_is_not_allowed(message: Message) -> None:
    for version in message.versions:
        value = fullest(message, version)
        for owner, name in places_that_may_not_be_null(message, version, value):
            kept = getattr(owner, name)
            setattr(owner, name, None)
            with pytest.raises(construct.ConstructError):
                message.build(value, version)
            with pytest.raises(REFUSALS):
                codec(message, version).to_bytes(value)
            setattr(owner, name, kept)


def places_that_may_not_be_null(struct: Struct, version: int, value: Any) -> Iterator[tuple[Any, str]]:
    for each in struct.fields:
        if not each.is_in(version):
            continue
        if not each.is_nullable_in(version):
            yield value, each.name
        held = getattr(value, each.name)
        inner = each.subcon.element if isinstance(each.subcon, Array) else each.subcon
        if isinstance(inner, Struct):
            yield from places_that_may_not_be_null(inner, version, held[-1] if isinstance(held, list) else held)


@every_message
def test_both_refuse_the_same_damaged_bytes_and_else_read_the_same(message: Message) -> None:
    chance = random.Random(message.name)
    for version in message.versions:
        whole = message.build(generated(message, version, chance), version)[:2000]
        for _ in range(12):
            check_same_reading(message, version, damaged(whole, chance))


def damaged(data: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(data) + 1)
    match chance.randrange(4):
        case 0:
            return data[:position]
        case 1:
            return data[:position] + chance.randbytes(1) + data[position + 1 :]
        case 2:
            return data[:position] + chance.randbytes(chance.randrange(1, 4)) + data[position:]
        case _:
            return data[:position] + data[position + 1 :]


def check_same_reading(message: Message, version: int, data: bytes) -> None:
    try:
        expected = message.parse(data, version)
    except construct.ConstructError:
        with pytest.raises(PeerError):
            codec(message, version).decode(data)
    else:
        assert codec(message, version).decode(data)[0] == expected


FLAT = Message(
    "Flat",
    field("id", Uuid),
    field("flag", types.Bool),
    field("number", Int8),
    field("numbers", Array(Int32)),
    field("name", String),
    field("aliases", Array(String)),
    field("data", Bytes),
    versions=(0, 1),
    flexible=1,
)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "member",
    [
        {"id": bytes(15)},
        {"id": bytes(17)},
        {"flag": None},
        {"number": 128},
        {"number": -129},
        {"number": "1"},
        {"numbers": [1 << 31]},
        {"numbers": [None]},
        {"name": "x" * 32768},
        {"name": "Ж" * 16384},
        {"aliases": [None]},
        {"aliases": ["x" * 40000]},
        {"data": None},
    ],
    ids=str,
)
def test_both_refuse_to_write_what_does_not_fit(member: dict[str, Any], version: int) -> None:
    value = FLAT(**member)
    with pytest.raises((construct.ConstructError, TypeError)):
        FLAT.build(value, version)
    with pytest.raises(REFUSALS):
        codec(FLAT, version).to_bytes(value)


@pytest.mark.parametrize("version", [0, 1])
def test_error_messages_are_cut_to_the_length_of_a_string(version: int) -> None:
    """They quote names of requests, which may be as long as any string."""
    refused = Message("Refused", field("error_message", String, nullable=0), versions=(0, 1), flexible=1)
    longest = "x" * types.MAX_STRING
    assert refused.parse(codec(refused, version).to_bytes(refused(error_message=longest)), version) == refused(
        error_message=longest
    )
    for long in (f"Group {longest} not found.", "Ж" * types.MAX_STRING):
        message = refused.parse(codec(refused, version).to_bytes(refused(error_message=long)), version).error_message
        assert message.endswith("...")
        assert long.startswith(message.removesuffix("..."))
        assert types.MAX_STRING - 3 <= len(message.encode()) <= types.MAX_STRING


@pytest.mark.parametrize("code", [Int8, types.Int16, Int32, types.Int64, types.UInt16])
def test_lists_of_numbers_of_every_length(code: Any) -> None:
    """Alone, behind fields of fixed width, and where they may be null: each is emitted in another way."""
    message = Message(
        "Numbers",
        field("alone", Array(code)),
        field("before", Int8),
        field("behind", Array(code)),
        field("maybe", Array(code), nullable=0),
        versions=(0, 1),
        flexible=1,
    )
    for version in message.versions:
        for count in (*range(20), 126, 127, 128, 129, 16383, 16384):
            numbers = [number % 100 for number in range(count)]
            check_agreement(message, version, message(alone=numbers, behind=numbers, maybe=numbers or None))


@every_message
def test_unknown_tagged_fields_are_skipped(message: Message) -> None:
    unknown = [(900, b"x" * 300), (1 << 20, b"")]
    for version in message.versions:
        if message.is_flexible(version) and not message.tagged(version):
            value = fullest(message, version)
            data = message.build(value, version)[:-1] + tag_section(unknown)
            assert codec(message, version).decode(data) == (value, len(data))
            assert message.parse(data, version) == value


def test_unknown_tags_stand_between_known_ones() -> None:
    message = BY_NAME["ApiVersionsResponse"]
    value = message(finalized_features_epoch=7, zk_migration_ready=True)
    untagged = message.build(message(), 3)[:-1]
    data = untagged + tag_section([(1, (7).to_bytes(8, "big")), (2000, b"?"), (3, b"\1")])
    assert codec(message, 3).decode(data) == (value, len(data))
    assert message.parse(data, 3) == value


def test_more_tags_than_fit_into_one_byte_of_count_are_read() -> None:
    tags = [(1000 + number, bytes(number)) for number in range(200)]
    for name, version in (("ApiVersionsResponse", 3), ("HeartbeatRequest", 4)):
        message = BY_NAME[name]
        data = message.build(message(), version)[:-1] + tag_section(tags)
        assert codec(message, version).decode(data) == (message(), len(data))
        assert message.parse(data, version) == message()


def tag_section(tags: list[tuple[int, bytes]]) -> bytes:
    fields = (unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in tags)
    return unsigned_varint(len(tags)) + b"".join(fields)


@every_message
def test_no_message_is_shorter_than_the_planned_least_size(message: Message) -> None:
    for version in message.versions:
        steps = plan(message, version)
        assert len(codec(message, version).to_bytes(smallest(message, version))) >= steps.least_size
        assert all(least_size(step) >= 1 for step in steps.steps)


def test_a_version_that_is_not_declared_has_no_codec() -> None:
    for version in (-1, 14):
        with pytest.raises(ValueError, match=f"ProduceRequest has no version {version}"):
            codec(BY_NAME["ProduceRequest"], version)


def test_a_codec_is_compiled_once() -> None:
    message = BY_NAME["ProduceRequest"]
    assert codec(message, 9) is codec(message, 9)
    assert codec(message, 9) is not codec(message, 8)


def test_a_traceback_shows_the_emitted_line() -> None:
    message = BY_NAME["HeartbeatRequest"]
    with pytest.raises(AttributeError) as caught:
        codec(message, 4).to_bytes(message(group_id=None))
    text = "".join(traceback.format_exception(caught.value))
    assert "<codec of HeartbeatRequest v4>" in text
    assert "value.group_id.encode()" in text


def test_records_are_views_of_the_buffer_and_other_bytes_are_copies() -> None:
    produce, sync = BY_NAME["ProduceRequest"], BY_NAME["SyncGroupRequest"]
    buffer = memoryview(bytearray(codec(produce, 9).to_bytes(fullest(produce, 9))))
    decoded, _ = codec(produce, 9).decode(buffer)
    records = decoded.topic_data[0].partition_data[0].records
    assert records.obj is buffer.obj
    decoded, _ = codec(sync, 5).decode(memoryview(codec(sync, 5).to_bytes(fullest(sync, 5))))
    assert type(decoded.assignments[0].assignment) is bytes


def test_records_are_handed_to_the_parts_as_they_are() -> None:
    """A file range is an object with a length, not bytes: the connection sends it."""
    message = BY_NAME["FetchResponse"]
    piece = FileLike()
    value = fullest(message, 12)
    value.responses[0].partitions[0].records = piece
    parts: list[Any] = []
    codec(message, 12).encode(value, parts)
    assert sum(part is piece for part in parts) == 1
    expected = fullest(message, 12)
    expected.responses[0].partitions[0].records = bytes(len(piece))
    assert b"".join(bytes(len(part)) if part is piece else part for part in parts) == message.build(expected, 12)


class FileLike:
    def __len__(self) -> int:
        return 4000


def test_decoded_lists_are_fresh() -> None:
    message = BY_NAME["MetadataRequest"]
    first, second = (codec(message, 12).decode(codec(message, 12).to_bytes(message()))[0] for _ in range(2))
    first.topics.append(Value())
    assert second.topics == []


@pytest.mark.parametrize(
    "script",
    [
        """
import sys, kbroker.protocol.registry, kbroker.protocol.compiler.load
loaded = [name for name in sys.modules if name.startswith("kbroker.protocol.messages.")]
assert loaded == [], loaded
""",
        """
from kbroker.protocol.registry import APIS
from kbroker.protocol.compiler import load
import kbroker.protocol.group_records, kbroker.protocol.transaction_records, kbroker.protocol.consumer_protocol
assert len({each.messages.__name__ for each in APIS}) == len(APIS)
assert load._codecs == {}
made = [each.request.value.__init__.__qualname__ for each in APIS]
assert all("value_class" in name for name in made), made
""",
    ],
    ids=["importing the registry loads no schema", "importing every schema compiles nothing"],
)
def test_nothing_is_done_at_import(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
