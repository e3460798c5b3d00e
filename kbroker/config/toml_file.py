"""Tables of a TOML file whose errors name the file, the line and the reason. Knows nothing of pipelines."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from kbroker.errors import UserError

__all__ = ["TomlTable", "read_toml"]

T = TypeVar("T")

KeyPath = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_NAME: Final = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")
_KINDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}


def read_toml(path: Path) -> TomlTable:
    """Reads a file. Raises UserError if it cannot be read or is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise UserError(f"Could not read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise UserError(_syntax_error(path, str(problem))) from None
    return TomlTable(values, path=path, lines=key_lines(text))


def _syntax_error(path: Path, problem: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", problem)
    if found is None:
        return f"{path}: {problem}"
    reason, line, column = found.groups()
    return f"{path}: the file ends too early: {reason}" if line is None else f"{path}:{line}:{column}: {reason}"


def key_lines(text: str) -> dict[KeyPath, int]:
    """Returns the line of each key and of each header. Keys of inline tables are on the line of their table."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    is_open = ""
    for number, line in enumerate(text.splitlines(), 1):
        if is_open:
            is_open = "" if line.count(is_open) % 2 else is_open
            continue
        if header := _HEADER.match(line):
            prefix = _names(header[2])
            if header[1] == "[[":
                counts[prefix] = counts.get(prefix, -1) + 1
                prefix = (*prefix, counts[prefix])
            lines.setdefault(prefix, number)
        elif key := _KEY.match(line):
            lines.setdefault((*prefix, *_names(key[1])), number)
        is_open = next((quotes for quotes in ('"""', "'''") if line.count(quotes) % 2), "")
    return lines


def _names(dotted: str) -> KeyPath:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))


class TomlTable:
    """One table of a file. After all getters, `end` refuses the keys that none of them asked for."""

    def __init__(
        self, values: Mapping[str, Any], *, path: Path, lines: Mapping[KeyPath, int], at: KeyPath = ()
    ) -> None:
        self.path = path
        self._values = dict(values)
        self._lines = lines
        self._at = at
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._values

    @property
    def keys(self) -> list[str]:
        return list(self._values)

    def problem(self, reason: str, *, key: str | None = None) -> UserError:
        """Returns an error with the file, the line of the key (without a key: of the table) and the reason."""
        return UserError(f"{self.place_of(key)}: {reason}")

    def place_of(self, key: str | None = None) -> str:
        """Returns FILE:LINE of a key, or of the table."""
        at = self._at if key is None else (*self._at, key)
        while at and at not in self._lines:
            at = at[:-1]
        return f"{self.path}:{self._lines.get(at, 1)}"

    def _take(self, key: str, kinds: type | tuple[type, ...], expected: str) -> Any:
        value = self._values[key]
        # bool is an int in Python, and not in TOML.
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise self.problem(f"{self.name_of(key)} must be {expected}", key=key)
        return value

    def name_of(self, key: str) -> str:
        names = [str(name) for name in self._at if isinstance(name, str)]
        return ".".join([*names, key])

    def require(self, key: str, why: str = "") -> None:
        """Raises UserError if the key is missing. `why` says what it is for."""
        if key not in self:
            raise self.problem(f"{self.name_of(key)} is missing{f': {why}' if why else ''}")

    def text(self, key: str, default: T | None = None, *, why: str = "") -> str | T:
        """Returns a text that is not empty. Without a default, the key is required."""
        if key not in self and default is not None:
            return default
        self.require(key, why)
        value: str = self._take(key, str, _KINDS[str])
        if not value.strip():
            raise self.problem(f"{self.name_of(key)} is empty", key=key)
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self else None

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        value: str = self.text(key, default)
        known = list(choices)
        if value not in known:
            raise self.problem(f"{self.name_of(key)} is '{value}'; expected one of: {', '.join(known)}", key=key)
        return value

    def number(self, key: str, default: int, *, at_least: int = 1) -> int:
        value: int = self._take(key, int, _KINDS[int]) if key in self else default
        if value < at_least:
            raise self.problem(f"{self.name_of(key)} must be {at_least} or more", key=key)
        return value

    def optional_number(self, key: str, *, at_least: int = 1) -> int | None:
        return self.number(key, at_least, at_least=at_least) if key in self else None

    def fraction(self, key: str, default: float) -> float:
        """Returns a number above 0."""
        value = float(self._take(key, (int, float), _KINDS[float])) if key in self else default
        if value <= 0:
            raise self.problem(f"{self.name_of(key)} must be above 0", key=key)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value: bool = self._take(key, bool, _KINDS[bool]) if key in self else default
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Returns a list of texts; one text counts as a list. Without a default, the key is required."""
        if key not in self and default is not None:
            return default
        self.require(key)
        value = self._take(key, (str, list), "a text or a list of texts")
        found = [value] if isinstance(value, str) else value
        if not found or not all(isinstance(item, str) and item.strip() for item in found):
            raise self.problem(f"{self.name_of(key)} must be a text or a list of texts, none of them empty", key=key)
        return tuple(found)

    def table(self, key: str) -> TomlTable:
        """Returns the table of a key; an empty one if the key is missing."""
        values = self._take(key, dict, f"a table: [{self.name_of(key)}]") if key in self else {}
        return TomlTable(values, path=self.path, lines=self._lines, at=(*self._at, key))

    def tables(self, key: str) -> list[TomlTable]:
        """Returns the tables of `[[key]]`."""
        values = self._take(key, list, f"tables: [[{self.name_of(key)}]]") if key in self else []
        if not all(isinstance(value, dict) for value in values):
            raise self.problem(f"{self.name_of(key)} must be tables: [[{self.name_of(key)}]]", key=key)
        return [
            TomlTable(value, path=self.path, lines=self._lines, at=(*self._at, key, number))
            for number, value in enumerate(values)
        ]

    def value(self, key: str) -> Any:
        """Returns the value of a key that exists, of any type."""
        self._asked.add(key)
        return self._values[key]

    def end(self) -> None:
        """Raises UserError, which names the first one, if the file has keys that no getter asked for."""
        for key in self._values:
            if key not in self._asked:
                hint = f"; known here: {', '.join(sorted(self._asked))}" if self._asked else ""
                raise self.problem(f"{self.name_of(key)} is unknown{hint}", key=key)
