"""Formats of the broker's log: text, and one JSON object per line."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest

from kbroker.cli.log_lines import JsonLines, TextLines, is_json


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(message: str, *arguments: object, extra: dict[str, Any] | None = None, exc_info: Any = None) -> Any:
    made = logging.getLogger("kbroker.test").makeRecord(
        "kbroker.test", logging.WARNING, __file__, 1, message, arguments, exc_info, extra=extra
    )
    made.created = 1_700_000_000.25
    return made


def test_a_json_line_holds_message_and_extra_fields() -> None:
    line = JsonLines().format(record("topic %s has %d", "orders", 3, extra={"topic": "orders", "partitions": 3}))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "WARNING",
        "logger": "kbroker.test",
        "message": "topic orders has 3",
        "topic": "orders",
        "partitions": 3,
    }


def test_a_traceback_is_a_field_of_the_json_line() -> None:
    try:
        raise ZeroDivisionError("oops\nand more")
    except ZeroDivisionError:
        line = JsonLines().format(record("it met a bug", exc_info=sys.exc_info()))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ZeroDivisionError: oops\nand more")


def test_a_value_that_is_not_json_is_written_as_text() -> None:
    assert json.loads(JsonLines().format(record("x", extra={"ids": {1}})))["ids"] == "{1}"


def test_a_text_line_has_time_level_and_message() -> None:
    line = TextLines().format(record("a %s", "b", extra={"topic": "not shown"}))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARNING a b", line)


@pytest.mark.parametrize(
    ("wanted", "stream", "expected"),
    [
        ("auto", Terminal(), False),
        ("auto", io.StringIO(), True),
        ("text", io.StringIO(), False),
        ("json", Terminal(), True),
    ],
)
def test_auto_means_text_only_on_a_terminal(wanted: str, stream: io.StringIO, expected: bool) -> None:
    assert is_json(wanted, stream) is expected
