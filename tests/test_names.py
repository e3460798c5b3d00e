from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.names import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    ZERO_UUID,
    colliding_topics,
    collision_key,
    is_internal_topic,
    random_uuid,
    topic_name_problem,
    uuid_from_text,
    uuid_to_text,
)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "-", "_", "x" * 249, "__consumer_offsets"])
def test_legal_topic_names_have_no_problem(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a:b", "a\x00", "٣"])
def test_illegal_topic_names_are_told(name: str) -> None:
    assert topic_name_problem(name)


def test_names_collide_when_they_differ_only_in_dots_and_underscores() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("a-b")
    assert colliding_topics("a.b", ["a_b", "a.b", "ab", "a-b"]) == ["a_b"]


def test_only_kafkas_own_topics_are_internal() -> None:
    assert is_internal_topic(CONSUMER_OFFSETS)
    assert is_internal_topic(TRANSACTION_STATE)
    assert not is_internal_topic("__consumer_offsets2")
    assert not is_internal_topic("consumer_offsets")


def test_uuids_read_as_kafka_writes_them() -> None:
    assert uuid_to_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_to_text(b"\xff" * 16) == "_" * 21 + "w"
    assert uuid_from_text("AAAAAAAAAAAAAAAAAAAAAQ") == bytes(15) + b"\x01"


@given(st.binary(min_size=16, max_size=16))
def test_every_uuid_survives_its_text(uuid: bytes) -> None:
    text = uuid_to_text(uuid)
    assert len(text) == 22
    assert uuid_from_text(text) == uuid
    assert uuid_from_text(text + "==") == uuid


@pytest.mark.parametrize(
    "text", ["", "A", "A" * 21, "A" * 23, "A" * 40, "!" + "A" * 21, "A" * 10 + " " + "A" * 12, "ä" * 22]
)
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="uuid"):
        uuid_from_text(text)


def test_a_uuid_of_another_length_has_no_text() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        uuid_to_text(bytes(15))


def test_random_uuids_are_of_version_4() -> None:
    uuid = random_uuid(lambda size: b"\xaa" * size)
    assert uuid[6] >> 4 == 4
    assert uuid[8] >> 6 == 0b10


def test_random_uuids_never_begin_with_a_dash() -> None:
    # 0xF8 to 0xFB in front make a dash.
    draws = (bytes([first]) + bytes(15) for first in count(0xF8))
    assert random_uuid(lambda size: next(draws))[0] == 0xFC
