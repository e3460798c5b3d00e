"""ssl.principal.mapping.rules: which user a distinguished name is.

`DEFAULT`, or `RULE:pattern/replacement/[L|U]`, separated by commas; the first rule whose pattern matches the whole name
applies. $1 in the replacement is a group of the pattern; L and U change the case of the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from kbroker.errors import UserError

__all__ = ["MappingRule", "map_name", "parse_rules"]

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_JAVA_GROUP: Final = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")


class MappingRule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None for DEFAULT: the name is the user."""
    replacement: str = ""
    case: str = ""
    """L for lower case, U for upper case."""


def parse_rules(text: str) -> list[MappingRule]:
    """Raises UserError if the rules are not valid."""
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise UserError(
                f"ssl.principal.mapping.rules has an invalid rule: '{text[position:]}'. Expected DEFAULT or "
                "RULE:pattern/replacement/[L|U]"
            )
        rules.append(_parse_rule(*found.groups()))
        position = found.end()
    return rules or [MappingRule(None)]


def _parse_rule(default: str | None, pattern: str | None, replacement: str | None, case: str | None) -> MappingRule:
    if default is not None or pattern is None:
        return MappingRule(None)
    try:
        compiled = re.compile(_JAVA_GROUP.sub(r"(?P<\1>", pattern.replace("\\/", "/")))
    except re.error as problem:
        raise UserError(f"ssl.principal.mapping.rules has an invalid pattern '{pattern}': {problem}") from None
    return MappingRule(compiled, (replacement or "").replace("\\/", "/"), case or "")


def map_name(rules: Sequence[MappingRule], name: str) -> str | None:
    """Returns the user of a distinguished name, or None if no rule applies."""
    for pattern, replacement, case in rules:
        if pattern is None:
            return name
        if pattern.fullmatch(name):
            user = pattern.sub(partial(_expand, replacement), name)
            return user.lower() if case == "L" else user.upper() if case == "U" else user
    return None


def _expand(replacement: str, match: re.Match[str]) -> str:
    """Returns the replacement with its groups, as Java's `replaceAll`. A $n without such a group is literal."""
    groups = match.re.groups

    def expand_one(reference: re.Match[str]) -> str:
        escaped, number, name = reference.groups()
        if escaped is not None:
            return escaped
        if name is not None:
            return match[name] or "" if name in match.re.groupindex else reference[0]
        # As many digits as there is a group for: $12 is group 1 and "2" if there are fewer than 12 groups.
        size = len(number)
        while size > 1 and int(number[:size]) > groups:
            size -= 1
        if int(number[:size]) > groups:
            return reference[0]
        return (match[int(number[:size])] or "") + number[size:]

    return re.sub(r"\\(.)|\$(\d+)|\$\{([A-Za-z][A-Za-z0-9]*)\}", expand_one, replacement)
