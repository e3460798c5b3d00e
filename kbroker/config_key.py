"""What a config is: a name with a type, a default, a check and words about it; and the rows that tables are made of.

Knows no config by name: those are in `config.py` and `inactive_configs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack, cast, overload

__all__ = [
    "DAY_MS",
    "MAX_DOUBLE",
    "MAX_INT",
    "MAX_LONG",
    "MB",
    "Check",
    "ConfigEntry",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigTable",
    "ConfigType",
    "Fallback",
    "UpdateMode",
    "at_least",
    "between",
    "class_name",
    "double",
    "flag",
    "format_value",
    "int16",
    "int32",
    "int64",
    "joined_strings",
    "keys_of",
    "one_of",
    "optional_int32",
    "optional_int64",
    "optional_string",
    "password",
    "some_of",
    "string",
    "strings",
]

T = TypeVar("T")
Check = Callable[[Any], str | None]
"""Takes a typed value and says what is wrong with it, or None."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_DOUBLE: Final = 1.7976931348623157e308
DAY_MS: Final = 86_400_000
MB: Final = 1 << 20


class ConfigType(IntEnum):
    """The numbers are DescribeConfigs' own."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from; the numbers are DescribeConfigs' own."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class UpdateMode(Enum):
    """Whether a broker's config may change while it runs, and for whom at once."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config as DescribeConfigs and CreateTopics tell it."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None
    is_sensitive: bool = False
    is_read_only: bool = False

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class Fallback(NamedTuple):
    """A broker config that stands in for a topic config, and what its unit is worth in the topic config's unit."""

    name: str
    factor: int = 1


class Marks(TypedDict, total=False):
    """What is worth saying of few configs only."""

    acts: bool
    """False: it is known, shown and kept, but nothing here changes by it. docs/compatibility.md lists these."""
    update: UpdateMode
    retired: bool
    """Kafka 4.1 has it no more: it is taken, and shown only where it was set."""


class ConfigKey(Generic[T]):
    """One line of a table. On an instance of the table the attribute is the typed value, on the class it is this key.

    The property's name is the attribute's with dots for underscores: no name of Kafka's has an underscore of its own.
    `__get__` alone makes it a non-data descriptor: values live in the instance's own dict and are found first.
    """

    __slots__ = (
        "acts",
        "attribute",
        "check",
        "default",
        "documentation",
        "fallbacks",
        "is_retired",
        "name",
        "parser",
        "type",
        "update",
    )

    def __init__(
        self,
        kind: ConfigType,
        default: T,
        check: Check | None,
        documentation: str,
        fallbacks: tuple[str | Fallback, ...] = (),
        parser: Callable[[str], object] | None = None,
        **marks: Unpack[Marks],
    ) -> None:
        self.name = ""
        self.type = kind
        self.default = default
        self.check = check
        self.documentation = documentation
        self.fallbacks = tuple(each if isinstance(each, Fallback) else Fallback(each) for each in fallbacks)
        self.parser = parser or _PARSERS[kind]
        self.attribute = ""
        self.acts = marks.get("acts", True)
        self.update = marks.get("update", UpdateMode.READ_ONLY)
        self.is_retired = marks.get("retired", False)

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = attribute.replace("_", ".")

    @overload
    def __get__(self, instance: None, owner: type) -> ConfigKey[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> ConfigKey[T] | T:
        return self if instance is None else self.default

    @property
    def default_text(self) -> str | None:
        return self.format(self.default)

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def format(self, value: object) -> str | None:
        """The value as Kafka shows it; an absent list that Kafka holds in one text is no empty text."""
        return None if value == () and self.type is ConfigType.STRING else format_value(value)

    def parse(self, text: str) -> T:
        """The typed value; ValueError says in one line what is wrong."""
        try:
            value = self.parser(text.strip())
        except ValueError:
            raise ValueError(f"{self.name}={text} is not {_KINDS[self.type]}") from None
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise ValueError(f"{self.name}={text} {problem}")
        return cast(T, value)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def _integer(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        # int() also takes 1_000 and digits of other scripts, which Kafka refuses.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError
        return value

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Final[Mapping[ConfigType, Callable[[str], object]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(32),
    ConfigType.SHORT: _integer(16),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: float,
    ConfigType.LIST: _list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}

_KINDS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
}


def format_value(value: object) -> str | None:
    """The text that Kafka shows for a typed value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_double(value)
    return str(value)


def _format_double(value: float) -> str:
    """As Java prints it: with an exponent from 10^7 on, and below 10^-3."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value in (float("inf"), float("-inf")) or value != value:
        return str(value)
    # The fewest digits that still stand for this number.
    shortest = next(text for digits in range(17) if float(text := f"{value:.{digits}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}E{int(exponent)}"


def at_least(least: float) -> Check:
    return lambda value: None if value is None or value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def some_of(*choices: str) -> Check:
    """A list that holds nothing else; it may be empty, as in Kafka 4.1."""
    problem = f"must list nothing but {', '.join(choices)}"
    return lambda value: None if all(item in choices for item in value) else problem


def flag(default: bool, documentation: str, *fallbacks: str | Fallback, **marks: Unpack[Marks]) -> ConfigKey[bool]:
    return ConfigKey(ConfigType.BOOLEAN, default, None, documentation, fallbacks, **marks)


def int16(default: int, check: Check | None, documentation: str, **marks: Unpack[Marks]) -> ConfigKey[int]:
    return ConfigKey(ConfigType.SHORT, default, check, documentation, **marks)


def int32(
    default: int, check: Check | None, documentation: str, *fallbacks: str | Fallback, **marks: Unpack[Marks]
) -> ConfigKey[int]:
    return ConfigKey(ConfigType.INT, default, check, documentation, fallbacks, **marks)


def int64(
    default: int, check: Check | None, documentation: str, *fallbacks: str | Fallback, **marks: Unpack[Marks]
) -> ConfigKey[int]:
    return ConfigKey(ConfigType.LONG, default, check, documentation, fallbacks, **marks)


def double(
    default: float, check: Check | None, documentation: str, *fallbacks: str | Fallback, **marks: Unpack[Marks]
) -> ConfigKey[float]:
    return ConfigKey(ConfigType.DOUBLE, default, check, documentation, fallbacks, **marks)


def string(
    default: str, check: Check | None, documentation: str, *fallbacks: str | Fallback, **marks: Unpack[Marks]
) -> ConfigKey[str]:
    return ConfigKey(ConfigType.STRING, default, check, documentation, fallbacks, **marks)


def strings(
    default: tuple[str, ...] | None,
    check: Check | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **marks: Unpack[Marks],
) -> ConfigKey[tuple[str, ...]]:
    return ConfigKey(ConfigType.LIST, cast("tuple[str, ...]", default), check, documentation, fallbacks, **marks)


def joined_strings(default: tuple[str, ...], documentation: str, **marks: Unpack[Marks]) -> ConfigKey[tuple[str, ...]]:
    """A list that Kafka declares as one text."""
    return ConfigKey(ConfigType.STRING, default, None, documentation, parser=_list, **marks)


def optional_int32(check: Check | None, documentation: str, **marks: Unpack[Marks]) -> ConfigKey[int | None]:
    return ConfigKey(ConfigType.INT, None, check, documentation, **marks)


def optional_int64(check: Check | None, documentation: str, **marks: Unpack[Marks]) -> ConfigKey[int | None]:
    return ConfigKey(ConfigType.LONG, None, check, documentation, **marks)


def optional_string(documentation: str, **marks: Unpack[Marks]) -> ConfigKey[str | None]:
    return ConfigKey(ConfigType.STRING, None, None, documentation, **marks)


def class_name(default: str | None, documentation: str, **marks: Unpack[Marks]) -> ConfigKey[str | None]:
    """A Java class in Kafka."""
    return ConfigKey(ConfigType.CLASS, default, None, documentation, **marks)


def password(documentation: str, **marks: Unpack[Marks]) -> ConfigKey[str | None]:
    return ConfigKey(ConfigType.PASSWORD, None, None, documentation, **marks)


class ConfigTable:
    """Typed values of one table; nobody sets one from outside."""

    texts: Mapping[str, str]
    """As they were given."""

    def __init__(self, values: Mapping[str, object], texts: Mapping[str, str]) -> None:
        for key in keys_of(type(self)):
            self.__dict__[key.attribute] = values.get(key.name, key.default)
        self.__dict__["texts"] = MappingProxyType(dict(texts))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} does not change: {name}")

    def value_of(self, name: str) -> object:
        return self.__dict__[name.replace(".", "_")]


def keys_of(table: type) -> Iterable[ConfigKey[Any]]:
    return [key for each in table.__mro__ for key in vars(each).values() if isinstance(key, ConfigKey)]
