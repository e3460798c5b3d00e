"""Compares output with a page: numbers, ids and column widths may differ, `...` matches anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["matches"]

_VARIES = re.compile(
    r"(?P<compiled>\((?:not )?compiled\))|(?P<id>\b[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-]))|(?P<number>\d+)|(?P<blanks>\s+)"
)
_PATTERNS = {"compiled": r"\((?:not )?compiled\)", "id": r"[\w-]{22}", "number": r"\d+", "blanks": r"[ \t]+"}


def matches(shown: Sequence[str], printed: str) -> bool:
    pattern = "\n".join(_ANYTHING if line.strip() == "..." else _pattern(line.strip()) for line in shown)
    lines = [line.strip() for line in printed.splitlines()]
    return re.fullmatch(pattern.replace(f"{_ANYTHING}\n", f"(?:{_ANYTHING}\n)?"), "\n".join(lines)) is not None


_ANYTHING = r"(?:.*\n)*.*"


def _pattern(line: str) -> str:
    parts, end = [], 0
    for match in _VARIES.finditer(line):
        parts.append(re.escape(line[end : match.start()]))
        parts.append(_PATTERNS[match.lastgroup or ""])
        end = match.end()
    return "".join([*parts, re.escape(line[end:])])
