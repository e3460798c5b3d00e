"""Records and timestamps as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.output import escape_control_characters
from kbroker.cli.record_text import InputRecord, parse_json_line, parse_text_line, record_to_json
from kbroker.cli.timestamps import format_timestamp, parse_timestamp
from kbroker.protocol.records import Record

content = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), content), max_size=3).map(tuple)


class FixedClock:
    def now_ms(self) -> int:
        return 1_000_000_000

    def monotonic(self) -> float:
        return 0.0


@given(content, content, headers, st.integers(0, 10), st.integers(0, 1 << 40))
def test_a_record_survives_json(
    key: bytes | None,
    value: bytes | None,
    given_headers: tuple[tuple[str, bytes | None], ...],
    partition: int,
    timestamp: int,
) -> None:
    record = Record(5, timestamp, key, value, given_headers)
    text = json.dumps(record_to_json("t", partition, record)).encode("utf-8")
    assert parse_json_line(text) == InputRecord(key, value, given_headers, partition, timestamp)


def test_a_line_is_split_at_the_first_separator() -> None:
    assert parse_text_line(b"a::b::c", key_separator=b"::", null=None) == InputRecord(b"a", b"b::c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("500ms", 999_999_500),
        ("10s", 999_990_000),
        ("15m", 999_100_000),
        ("2h", 992_800_000),
        ("1d", 913_600_000),
        ("999d", 0),
    ],
)
def test_timestamps_are_parsed(text: str, expected: int) -> None:
    assert parse_timestamp(text, FixedClock()) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5h", "15x", "2026-13-01", "m"])
def test_an_invalid_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_timestamp(text, FixedClock())


@pytest.mark.parametrize(("timestamp", "text"), [(0, "1970-01-01T00:00:00.000Z"), (-1, None), (1 << 62, None)])
def test_timestamps_are_formatted_in_utc_with_milliseconds(timestamp: int, text: str | None) -> None:
    assert format_timestamp(timestamp) == text


def test_control_characters_are_escaped() -> None:
    assert escape_control_characters("a\x1b[2Jb\x9bc\rd\n\tä") == "a\\x1b[2Jb\\x9bc\\x0dd\n\tä"
