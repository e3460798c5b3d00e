"""Records as text and back, and moments as people write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.moments import parse_moment
from kbroker.cli.output import tame, time_text
from kbroker.cli.record_text import Line, json_of_record, line_from_json, line_from_text
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
    text = json.dumps(json_of_record("t", partition, record)).encode("utf-8")
    assert line_from_json(text) == Line(key, value, given_headers, partition, timestamp)


def test_a_separator_is_taken_at_its_first_place() -> None:
    assert line_from_text(b"a::b::c", key_separator=b"::", null=None) == Line(b"a", b"b::c")


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
def test_moments_are_read(text: str, expected: int) -> None:
    assert parse_moment(text, FixedClock()) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5h", "15x", "2026-13-01", "m"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text, FixedClock())


@pytest.mark.parametrize(("timestamp", "text"), [(0, "1970-01-01T00:00:00.000Z"), (-1, None), (1 << 62, None)])
def test_times_are_utc_to_the_millisecond(timestamp: int, text: str | None) -> None:
    assert time_text(timestamp) == text


def test_a_record_cannot_command_a_terminal() -> None:
    assert tame("a\x1b[2Jb\x9bc\rd\n\tä") == "a\\x1b[2Jb\\x9bc\\x0dd\n\tä"
