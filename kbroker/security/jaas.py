"""JAAS configs: the login module of a mechanism with its options, in the syntax that Java reads.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_alice="c";

The tokens are those of Java's StreamTokenizer: words, quoted strings with backslashes, numbers, // and /* */ comments.
An option with an unquoted number is an error, as in Kafka. Error messages never show a value: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.errors import UserError

__all__ = [
    "OAUTH_BEARER_LOGIN_MODULE",
    "PLAIN_LOGIN_MODULE",
    "SCRAM_LOGIN_MODULE",
    "LoginModule",
    "parse_jaas",
    "parse_jaas_section",
    "plain_users",
    "quote_jaas",
]

_PACKAGE: Final = "org.apache.kafka.common.security"
PLAIN_LOGIN_MODULE: Final = f"{_PACKAGE}.plain.PlainLoginModule"
SCRAM_LOGIN_MODULE: Final = f"{_PACKAGE}.scram.ScramLoginModule"
OAUTH_BEARER_LOGIN_MODULE: Final = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule"

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
# Kafka refuses them: they make the broker connect to any address that the config names.
_FORBIDDEN: Final = ("com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule")
_USER_PREFIX: Final = "user_"

_WORD: Final = "word"
_NUMBER: Final = "number"
_OTHER: Final = "other"

# A word begins with a letter (of any script), _ or $; digits, dots and dashes may follow.
_TOKEN: Final = re.compile(
    r"(?P<blank>[\x00-\x20]+|//[^\r\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"|(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)"
    r"|\"(?P<double>(?:[^\"\\\r\n]|\\[^\r\n])*)(?:\"|(?=[\r\n])|\Z)"
    r"|'(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)(?:'|(?=[\r\n])|\Z)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    class_name: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str, *, source: str) -> LoginModule:
    """Parses the only login module of a JAAS config.

    Raises UserError if the text is malformed. The message names `source` and never a value.
    """
    tokens = list(_tokens(text))
    modules = []
    position = 0
    try:
        while position < len(tokens):
            module, position = _module(tokens, position)
            modules.append(module)
    except ValueError as problem:
        raise UserError(f"{source}: {problem}") from None
    return _only(modules, source)


def _only(modules: list[LoginModule], source: str) -> LoginModule:
    if len(modules) != 1:
        found = f"{len(modules)} login modules" if modules else "no login module"
        raise UserError(f"{source}: JAAS config has {found}, expected 1")
    if modules[0].class_name in _FORBIDDEN:
        raise UserError(f"{source}: {modules[0].class_name} is not allowed, as in Kafka")
    return modules[0]


def parse_jaas_section(text: str, *, section: str, source: str) -> LoginModule:
    """Parses the only login module of a section of a JAAS file: `Client { <module> required key="value"; };`.

    Raises UserError if the text is malformed. The message names `source` and never a value.
    """
    tokens = list(_tokens(text))
    sections: dict[str, list[LoginModule]] = {}
    position = 0
    try:
        while position < len(tokens):
            name, modules, position = _section(tokens, position)
            sections[name] = modules
    except ValueError as problem:
        raise UserError(f"{source}: {problem}") from None
    if section not in sections:
        raise UserError(f"{source}: JAAS file has no section {section}")
    return _only(sections[section], source)


def _section(tokens: list[tuple[str, str]], position: int) -> tuple[str, list[LoginModule], int]:
    kind, name = tokens[position]
    if kind is not _WORD or tokens[position + 1 : position + 2] != [(_OTHER, "{")]:
        raise ValueError('JAAS file must consist of sections: NAME { <login module> required key="value"; };')
    position += 2
    modules = []
    while position < len(tokens) and tokens[position] != (_OTHER, "}"):
        module, position = _module(tokens, position)
        modules.append(module)
    if tokens[position : position + 2] != [(_OTHER, "}"), (_OTHER, ";")]:
        raise ValueError(f"JAAS file: section {name} not terminated by }};")
    return name, modules, position + 2


def _module(tokens: list[tuple[str, str]], position: int) -> tuple[LoginModule, int]:
    kind, class_name = tokens[position]
    if kind is not _WORD:
        raise ValueError("Login module not specified in JAAS config")
    if position + 1 >= len(tokens):
        raise ValueError("Login module control flag not specified in JAAS config")
    if tokens[position + 1][1].lower() not in _FLAGS:
        raise ValueError("Invalid login module control flag in JAAS config: expected one of " + ", ".join(_FLAGS))
    position += 2
    options: dict[str, str] = {}
    while position < len(tokens) and tokens[position] != (_OTHER, ";"):
        key, value = _option(tokens[position : position + 3])
        options[key] = value
        position += 3
    if position >= len(tokens):
        raise ValueError("JAAS config entry not terminated by semi-colon")
    return LoginModule(class_name, options), position + 1


def _option(tokens: list[tuple[str, str]]) -> tuple[str, str]:
    kind, key = tokens[0]
    name = key if kind is _WORD else "?"
    if len(tokens) < 3 or tokens[1] != (_OTHER, "=") or tokens[2][0] is not _WORD or kind is not _WORD:
        raise ValueError(f"Value not specified for key '{name}' in JAAS config. Quote values that are not words.")
    return key, tokens[2][1]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yields kind and text of each token. A quoted string is a word, as in Java."""
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind in ("double", "single"):
            yield _WORD, _ESCAPE.sub(_unescape, found[kind])
        elif kind == "word":
            yield _WORD, found[kind]
        elif kind == "number":
            yield _NUMBER, found[kind]
        elif kind == "other":
            yield _OTHER, found[kind]


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)


def quote_jaas(value: str) -> str:
    """Returns a value as a quoted string of a JAAS config."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def plain_users(module: LoginModule) -> dict[str, str]:
    """Returns the passwords of the users that may log in with PLAIN: user_<name>=<password>."""
    return {
        name.removeprefix(_USER_PREFIX): password
        for name, password in module.options.items()
        if name.startswith(_USER_PREFIX)
    }
