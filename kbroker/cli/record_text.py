"""Records as text: parses the lines that `produce` reads, formats the lines that `consume` writes. Does no I/O.

`produce --format json` reads the output of `consume --json`. Bytes that are not UTF-8 are {"base64": …}.
"""

from __future__ import annotations

import json
import os
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kbroker.cli.timestamps import format_timestamp

__all__ = [
    "DECODERS",
    "NULL",
    "Decoders",
    "InputRecord",
    "InvalidLine",
    "Part",
    "UndecodableRecord",
    "compile_template",
    "parse_json_line",
    "parse_text_line",
    "record_to_json",
    "unescape",
]

_JSON_FIELDS: Final = dict.fromkeys(("key", "value", "headers", "partition", "timestamp", "topic", "offset"))
"""Fields in the order of the error message. Topic and offset, which `consume --json` writes, are ignored."""

_Headers = tuple[tuple[str, bytes | None], ...]


class InvalidLine(ValueError):
    """Raised if a line is not a valid record; the message says why."""


class InputRecord(NamedTuple):
    """Record to write. Partition or timestamp is None if the line does not set it."""

    key: bytes | None
    value: bytes | None
    headers: _Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def parse_text_line(text: bytes, *, key_separator: bytes | None, null: bytes | None) -> InputRecord:
    key: bytes | None = None
    value: bytes | None = text
    if key_separator is not None:
        head, found, tail = text.partition(key_separator)
        if not found:
            raise InvalidLine(f"missing key separator '{key_separator.decode('utf-8', 'replace')}'")
        key, value = head, tail
    if null is not None:
        key, value = (None if part == null else part for part in (key, value))
    return InputRecord(key, value)


def parse_json_line(text: bytes) -> InputRecord:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidLine(f"invalid JSON: {problem}") from None
    if not isinstance(fields, dict):
        raise InvalidLine('not a JSON object (expected for example {"key": "a", "value": "b"})')
    if unknown := fields.keys() - _JSON_FIELDS:
        names = ", ".join(f"'{name}'" for name in sorted(unknown))
        raise InvalidLine(f"unknown field {names}; fields are {', '.join(_JSON_FIELDS)}")
    return InputRecord(
        _bytes_from_json(fields.get("key"), "key"),
        _bytes_from_json(fields.get("value"), "value"),
        _headers_from_json(fields.get("headers")),
        _integer_or_none(fields.get("partition"), "partition"),
        _integer_or_none(fields.get("timestamp"), "timestamp"),
    )


def _bytes_from_json(content: Any, name: str) -> bytes | None:
    """Returns the bytes of a string or {"base64": …}; any other JSON value is encoded as JSON text."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, dict) and content.keys() == {"base64"}:
        try:
            return b64decode(content["base64"], validate=True)
        except (TypeError, ValueError):
            raise InvalidLine(f"invalid base64 in {name}") from None
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _headers_from_json(content: Any) -> _Headers:
    if content is None:
        return ()
    if isinstance(content, dict):
        content = [{"key": name, "value": value} for name, value in content.items()]
    if not isinstance(content, list) or not all(isinstance(header, dict) and "key" in header for header in content):
        raise InvalidLine('headers must be an object, or a list like [{"key": "a", "value": "b"}]')
    return tuple((str(header["key"]), _bytes_from_json(header.get("value"), "header")) for header in content)


def _integer_or_none(content: Any, name: str) -> int | None:
    if content is not None and (isinstance(content, bool) or not isinstance(content, int)):
        raise InvalidLine(f"{name} must be an integer")
    return content


class UndecodableRecord(ValueError):
    """Raised if a key or value does not have the format that the user has named; the message says why."""


def _fixed(layout: str, name: str) -> Callable[[bytes], Any]:
    """Returns the decoder of a big-endian number, as Kafka's serializers of Java write it."""
    codec = struct.Struct(f">{layout}")

    def decode(content: bytes) -> Any:
        if len(content) != codec.size:
            raise ValueError(f"{name} has {codec.size} bytes, not {len(content)}")
        return codec.unpack(content)[0]

    return decode


DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "text": lambda content: bytes_to_json(content),
    "json": json.loads,
    "hex": bytes.hex,
    "base64": lambda content: b64encode(content).decode("ascii"),
    "int16": _fixed("h", "int16"),
    "int32": _fixed("i", "int32"),
    "int64": _fixed("q", "int64"),
    "float32": _fixed("f", "float32"),
    "float64": _fixed("d", "float64"),
}
"""Name of a format -> function that returns a key or value as JSON. Raises ValueError if it has another format."""


class Decoders(NamedTuple):
    """Formats of keys and values: names in DECODERS."""

    key: str = "text"
    value: str = "text"

    def as_json(self, record: Any) -> tuple[Any, Any]:
        """Returns key and value as JSON. Raises UndecodableRecord if one of them cannot be decoded."""
        return (
            _decode(self.key, "key", record.key, record.offset),
            _decode(self.value, "value", record.value, record.offset),
        )

    def as_text(self, record: Any) -> Any:
        """Returns the record with key and value as text. Raises UndecodableRecord if one of them cannot be decoded."""
        if self == PLAIN:
            return record
        key, value = self.as_json(record)
        return record._replace(key=_text_of(self.key, record.key, key), value=_text_of(self.value, record.value, value))


PLAIN: Final = Decoders()


def _decode(name: str, part: str, content: bytes | None, offset: int) -> Any:
    if content is None:
        return None
    try:
        return DECODERS[name](content)
    except (ValueError, RecursionError) as problem:
        raise UndecodableRecord(f"offset {offset}: the {part} is not {name}: {problem}") from None


def _text_of(name: str, content: bytes | None, decoded: Any) -> bytes | None:
    if content is None or name == "text":
        return content
    text = decoded if isinstance(decoded, str) and name != "json" else json.dumps(decoded, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def record_to_json(topic: str, partition: int, record: Any, decoders: Decoders = PLAIN) -> dict[str, Any]:
    """Returns the fields of a record. Raises UndecodableRecord if key or value cannot be decoded."""
    key, value = decoders.as_json(record)
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "value": value,
        "headers": [{"key": name, "value": bytes_to_json(content)} for name, content in record.headers],
    }


def bytes_to_json(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode("ascii")}


NULL: Final = b"null"
_TOKEN = re.compile(r"\{(\w+)\}|\\(.)|([^\\{]+)|([\\{])", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    r"""Returns the bytes of a text in which `\n`, `\t`, `\r`, `\0` and `\\` are escapes."""
    return b"".join(
        _ESCAPES.get(escape, escape.encode()) if escape else os.fsencode(plain)
        for escape, plain in re.findall(r"\\(.)|([^\\]+|\\$)", text, re.DOTALL)
    )


Part = Callable[[str, int, Any], bytes]

_FIELDS: Final[dict[str, Part]] = {
    "topic": lambda topic, _partition, _record: topic.encode(),
    "partition": lambda _topic, partition, _record: b"%d" % partition,
    "offset": lambda _topic, _partition, record: b"%d" % record.offset,
    "timestamp": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "time": lambda _topic, _partition, record: (format_timestamp(record.timestamp) or "-").encode(),
    "key": lambda _topic, _partition, record: NULL if record.key is None else record.key,
    "value": lambda _topic, _partition, record: NULL if record.value is None else record.value,
    "headers": lambda _topic, _partition, record: b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (NULL if content is None else content)
        for name, content in record.headers
    ),
}


def compile_template(text: str) -> Part:
    r"""Returns a function that formats a record. Replaces `{value}` and the other fields, `\n`, `\t`, `\r`, `\0`, `\\`.

    Raises ValueError if a field is unknown.
    """
    parts: list[Part] = []
    for name, escape, plain, lone in _TOKEN.findall(text):
        if name:
            if name not in _FIELDS:
                raise ValueError(f"Unknown field {{{name}}}. Use {', '.join(f'{{{field}}}' for field in _FIELDS)}.")
            parts.append(_FIELDS[name])
        else:
            parts.append(_constant(_ESCAPES.get(escape, escape.encode()) if escape else (plain or lone).encode()))
    return _joined(parts)


def _constant(content: bytes) -> Part:
    return lambda _topic, _partition, _record: content


def _joined(parts: Sequence[Part]) -> Part:
    return lambda topic, partition, record: b"".join([part(topic, partition, record) for part in parts])
