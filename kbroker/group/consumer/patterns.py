"""Subscriptions by regular expression, in RE2 syntax: it matches in linear time, so that no client can block a broker.

RE2 is imported on first use, to save memory in brokers that never use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

__all__ = ["NAMES_AT_ONCE", "InvalidPattern", "compile_pattern", "matching_topics"]

NAMES_AT_ONCE: Final = 500
"""Number of topic names matched without a pause: takes about a millisecond."""

Matches = Callable[[str], Any]


class InvalidPattern(Exception):
    """The text is not a regular expression of RE2. The message says why."""


def compile_pattern(text: str) -> Matches:
    """Returns a function that matches whole names. Uses a set of one pattern, twice as fast as the pattern itself."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    patterns = re2.Set.FullMatchSet(options)
    try:
        re2.compile(text, options=options)  # only this call reports the error
        patterns.Add(text)
        patterns.Compile()
    except (re2.error, UnicodeEncodeError) as problem:
        reason = problem.args[0]
        raise InvalidPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    matches: Matches = patterns.Match
    return matches


def matching_topics(text: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Yields the matching names of NAMES_AT_ONCE names at a time, so that the caller can let other tasks run."""
    matches = compile_pattern(text)
    for start in range(0, len(names), NAMES_AT_ONCE):
        yield [name for name in names[start : start + NAMES_AT_ONCE] if matches(name)]
