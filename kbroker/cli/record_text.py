"""Records as text: lines and JSON that `produce` reads, and what `consume` writes. Pure.

The JSON of `consume --json` is what `produce --format json` reads: bytes that are not UTF-8 stand as {"base64": …}.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kbroker.cli.output import time_text

__all__ = ["BadLine", "Line", "json_of_record", "line_from_json", "line_from_text", "template_of"]

Headers = tuple[tuple[str, bytes | None], ...]


class BadLine(ValueError):
    """A line that is no record, and why."""


class Line(NamedTuple):
    """A record to be written; None where the line does not say."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def line_from_text(text: bytes, *, key_separator: bytes | None, null: bytes | None) -> Line:
    key: bytes | None = None
    value: bytes | None = text
    if key_separator is not None:
        head, found, tail = text.partition(key_separator)
        if not found:
            raise BadLine(f"no '{key_separator.decode('utf-8', 'replace')}' between key and value")
        key, value = head, tail
    if null is not None:
        key, value = (None if part == null else part for part in (key, value))
    return Line(key, value)


def line_from_json(text: bytes) -> Line:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadLine(f"not JSON: {problem}") from None
    if not isinstance(fields, dict):
        raise BadLine('not a JSON object such as {"key": "a", "value": "b"}')
    return Line(
        _bytes_of(fields.get("key"), "key"),
        _bytes_of(fields.get("value"), "value"),
        _headers_of(fields.get("headers")),
        _whole_number(fields.get("partition"), "partition"),
        _whole_number(fields.get("timestamp"), "timestamp"),
    )


def _bytes_of(content: Any, name: str) -> bytes | None:
    """Text and base64 as they are; any other JSON value is kept as JSON."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, dict) and content.keys() == {"base64"}:
        try:
            return b64decode(content["base64"], validate=True)
        except (TypeError, ValueError):
            raise BadLine(f"the base64 of its {name} is none") from None
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _headers_of(content: Any) -> Headers:
    if content is None:
        return ()
    if isinstance(content, dict):
        content = [{"key": name, "value": value} for name, value in content.items()]
    if not isinstance(content, list) or not all(isinstance(each, dict) and "key" in each for each in content):
        raise BadLine('headers are an object, or a list such as [{"key": "a", "value": "b"}]')
    return tuple((str(each["key"]), _bytes_of(each.get("value"), "header")) for each in content)


def _whole_number(content: Any, name: str) -> int | None:
    if content is not None and (isinstance(content, bool) or not isinstance(content, int)):
        raise BadLine(f"its {name} is no whole number")
    return content


def json_of_record(topic: str, partition: int, record: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_of_bytes(record.key),
        "value": json_of_bytes(record.value),
        "headers": [{"key": name, "value": json_of_bytes(content)} for name, content in record.headers],
    }


def json_of_bytes(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode("ascii")}


NULL: Final = b"null"
_TOKEN = re.compile(r"\{(\w+)\}|\\(.)|([^\\{]+)|([\\{])", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Part = Callable[[str, int, Any], bytes]

_FIELDS: Final[dict[str, Part]] = {
    "topic": lambda topic, _partition, _record: topic.encode(),
    "partition": lambda _topic, partition, _record: b"%d" % partition,
    "offset": lambda _topic, _partition, record: b"%d" % record.offset,
    "timestamp": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "time": lambda _topic, _partition, record: (time_text(record.timestamp) or "-").encode(),
    "key": lambda _topic, _partition, record: NULL if record.key is None else record.key,
    "value": lambda _topic, _partition, record: NULL if record.value is None else record.value,
    "headers": lambda _topic, _partition, record: b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (NULL if content is None else content)
        for name, content in record.headers
    ),
}


def template_of(text: str) -> Part:
    r"""A function from a record to its bytes. `{value}` and its like are replaced, `\n` and `\t` mean what they do."""
    parts: list[Part] = []
    for name, escape, plain, lone in _TOKEN.findall(text):
        if name:
            if name not in _FIELDS:
                raise ValueError(f"there is no {{{name}}}: use {', '.join(f'{{{each}}}' for each in _FIELDS)}")
            parts.append(_FIELDS[name])
        else:
            parts.append(_constant(_ESCAPES.get(escape, escape.encode()) if escape else (plain or lone).encode()))
    return _joined(parts)


def _constant(content: bytes) -> Part:
    return lambda _topic, _partition, _record: content


def _joined(parts: Sequence[Part]) -> Part:
    return lambda topic, partition, record: b"".join([part(topic, partition, record) for part in parts])
