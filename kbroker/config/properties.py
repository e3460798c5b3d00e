"""Parses Java properties files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TextIO

from kbroker.errors import UserError

__all__ = ["parse_properties", "read_properties"]


def parse_properties(text: str) -> dict[str, str]:
    """Parses the text of a Java properties file.

    # and ! start a comment. =, : or a space ends the name. A backslash at the end continues a line.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        name, rest = _split_property(line)
        properties[_unescape(name)] = _unescape(rest)
    return properties


def read_properties(file: TextIO) -> dict[str, str]:
    """Reads an open properties file. Raises UserError if it is not text in UTF-8."""
    try:
        return parse_properties(file.read())
    except UnicodeDecodeError:
        raise UserError(f"{file.name} is not a text file in UTF-8") from None


def _logical_lines(text: str) -> Iterable[str]:
    pending = ""
    # Not splitlines(): a form feed or U+2028 in a value does not end the line.
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = line.lstrip(" \t\f")
        if not pending and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            pending += stripped[:-1]
            continue
        yield pending + stripped
        pending = ""
    if pending:
        yield pending


def _split_property(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:end], rest


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            out.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(4))
            try:
                out.append(chr(int(digits, 16)))
            except ValueError:
                raise UserError(f"Invalid escape \\u{digits} in the properties: expected four hex digits") from None
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
