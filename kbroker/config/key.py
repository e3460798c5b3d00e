"""Config keys: type, default, validation and documentation of a config, and the tables that hold the keys.

The configs themselves are in `broker.py`, `inactive.py`, `tls.py`, `sasl.py`, `zookeeper.py`, `topic.py`, `group.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack, cast, overload

__all__ = [
    "CLUSTER_WIDE",
    "DAY_MS",
    "MAX_DOUBLE",
    "MAX_INT",
    "MAX_LONG",
    "MB",
    "PER_BROKER",
    "ConfigEntry",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigTable",
    "ConfigType",
    "Fallback",
    "InvalidValue",
    "Password",
    "UpdateMode",
    "ValueCheck",
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
ValueCheck = Callable[[Any], str | None]
"""Returns the problem of a typed value as the end of a sentence ("must be at least 1"), or None if it is valid."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_DOUBLE: Final = 1.7976931348623157e308
DAY_MS: Final = 86_400_000
MB: Final = 1 << 20


class ConfigType(IntEnum):
    """Type of a config, with its number in DescribeConfigs."""

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
    """Source of a config value, with its number in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class UpdateMode(Enum):
    """Whether a broker config can be updated dynamically, and for one broker or for the whole cluster."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE
"""Short names for the tables."""


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config in a DescribeConfigs or CreateTopics response."""

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
    """Broker config that gives the default of a topic or group config.

    `factor` converts its unit to that config's unit.
    """

    name: str
    factor: int = 1


class KeyOptions(TypedDict, total=False):
    """Optional attributes of a config key."""

    has_effect: bool
    """False if the config is accepted and shown, but does not change the broker. docs/compatibility.md lists these."""
    update: UpdateMode
    retired: bool
    """Whether Kafka 4.1 has removed the config. It is accepted, and shown only if it is set."""


class Password:
    """Value of a config that is never shown: logs, tracebacks and DescribeConfigs get [hidden], as in Kafka."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class InvalidValue(ValueError):
    """The text is not a valid value of a config. The message is one line for a user."""

    def __init__(self, name: str, text: str, problem: str, reason: str) -> None:
        """`problem`: the end of a sentence ("must be at least 1"). `reason`: a sentence of Kafka."""
        super().__init__(f"{name}={text} {problem}")
        self._name = name
        self._text = text
        self._reason = reason

    def for_client(self, prefix: str = "") -> str:
        """Returns Kafka's message for a client. `prefix`: of the config's name, for a listener."""
        return f"Invalid value {self._text} for configuration {prefix}{self._name}: {self._reason}"


class ConfigKey(Generic[T]):
    """One config of a table. On an instance of the table the attribute is the typed value, on the class it is the key.

    The config's name is the attribute's name with dots for underscores: no config name of Kafka has an underscore.
    Do not add `__set__`: this must stay a non-data descriptor, so that Python finds the value in the instance's dict
    first, without a call.
    """

    __slots__ = (
        "attribute",
        "check",
        "default",
        "documentation",
        "fallbacks",
        "has_effect",
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
        check: ValueCheck | None,
        documentation: str,
        fallbacks: tuple[str | Fallback, ...] = (),
        parser: Callable[[str], object] | None = None,
        **options: Unpack[KeyOptions],
    ) -> None:
        self.name = ""
        self.type = kind
        self.default = default
        self.check = check
        self.documentation = documentation
        self.fallbacks = tuple(
            fallback if isinstance(fallback, Fallback) else Fallback(fallback) for fallback in fallbacks
        )
        self.parser = parser or _PARSERS[kind]
        self.attribute = ""
        self.has_effect = options.get("has_effect", True)
        self.update = options.get("update", UpdateMode.READ_ONLY)
        self.is_retired = options.get("retired", False)

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
        """Returns the value as Kafka shows it. None for an empty list that Kafka declares as a string."""
        return None if value == () and self.type is ConfigType.STRING else format_value(value)

    def parse(self, text: str) -> T:
        """Returns the typed value. Raises InvalidValue if the text is invalid."""
        try:
            value = self.parser(text.strip())
        except ValueError:
            expected = (
                "Expected value to be either true or false"
                if self.type is ConfigType.BOOLEAN
                else f"Not a number of type {self.type.name}"
            )
            raise InvalidValue(self.name, text, f"must be {_KINDS[self.type]}", expected) from None
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise InvalidValue(self.name, text, problem, f"Value {problem}")
        return cast(T, value)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def _integer(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        # int() also accepts 1_000 and non-ASCII digits, which Kafka rejects.
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
    ConfigType.PASSWORD: Password,
}

_KINDS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
}


def format_value(value: object) -> str | None:
    """Returns the text that Kafka shows for a typed value."""
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
    """Formats a float as Java does: with an exponent from 10^7 on, and below 10^-3."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value in (float("inf"), float("-inf")) or value != value:
        return str(value)
    # The fewest digits that parse to the same number.
    shortest = next(text for digits in range(17) if float(text := f"{value:.{digits}e}") == value)
    mantissa, _, exponent = shortest.partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}E{int(exponent)}"


def at_least(least: float) -> ValueCheck:
    return lambda value: None if value is None or value >= least else f"must be at least {least}"


def between(least: float, most: float) -> ValueCheck:
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def one_of(*choices: str) -> ValueCheck:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def some_of(*choices: str) -> ValueCheck:
    """Accepts a list of these choices. The list may be empty, as in Kafka 4.1."""
    problem = f"must be a list of {', '.join(choices)}"
    return lambda value: None if all(item in choices for item in value) else problem


def flag(
    default: bool, documentation: str, *fallbacks: str | Fallback, **options: Unpack[KeyOptions]
) -> ConfigKey[bool]:
    return ConfigKey(ConfigType.BOOLEAN, default, None, documentation, fallbacks, **options)


def int16(default: int, check: ValueCheck | None, documentation: str, **options: Unpack[KeyOptions]) -> ConfigKey[int]:
    return ConfigKey(ConfigType.SHORT, default, check, documentation, **options)


def int32(
    default: int,
    check: ValueCheck | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **options: Unpack[KeyOptions],
) -> ConfigKey[int]:
    return ConfigKey(ConfigType.INT, default, check, documentation, fallbacks, **options)


def int64(
    default: int,
    check: ValueCheck | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **options: Unpack[KeyOptions],
) -> ConfigKey[int]:
    return ConfigKey(ConfigType.LONG, default, check, documentation, fallbacks, **options)


def double(
    default: float,
    check: ValueCheck | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **options: Unpack[KeyOptions],
) -> ConfigKey[float]:
    return ConfigKey(ConfigType.DOUBLE, default, check, documentation, fallbacks, **options)


def string(
    default: str,
    check: ValueCheck | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **options: Unpack[KeyOptions],
) -> ConfigKey[str]:
    return ConfigKey(ConfigType.STRING, default, check, documentation, fallbacks, **options)


def strings(
    default: tuple[str, ...] | None,
    check: ValueCheck | None,
    documentation: str,
    *fallbacks: str | Fallback,
    **options: Unpack[KeyOptions],
) -> ConfigKey[tuple[str, ...]]:
    return ConfigKey(ConfigType.LIST, cast("tuple[str, ...]", default), check, documentation, fallbacks, **options)


def joined_strings(
    default: tuple[str, ...], documentation: str, **options: Unpack[KeyOptions]
) -> ConfigKey[tuple[str, ...]]:
    """Declares a list that Kafka declares as a string."""
    return ConfigKey(ConfigType.STRING, default, None, documentation, parser=_list, **options)


def optional_int32(
    check: ValueCheck | None, documentation: str, **options: Unpack[KeyOptions]
) -> ConfigKey[int | None]:
    return ConfigKey(ConfigType.INT, None, check, documentation, **options)


def optional_int64(
    check: ValueCheck | None, documentation: str, **options: Unpack[KeyOptions]
) -> ConfigKey[int | None]:
    return ConfigKey(ConfigType.LONG, None, check, documentation, **options)


def optional_string(
    documentation: str, check: ValueCheck | None = None, **options: Unpack[KeyOptions]
) -> ConfigKey[str | None]:
    return ConfigKey(ConfigType.STRING, None, check, documentation, **options)


def class_name(default: str | None, documentation: str, **options: Unpack[KeyOptions]) -> ConfigKey[str | None]:
    """Declares the name of a Java class."""
    return ConfigKey(ConfigType.CLASS, default, None, documentation, **options)


def password(documentation: str, **options: Unpack[KeyOptions]) -> ConfigKey[Password | None]:
    return ConfigKey(ConfigType.PASSWORD, None, None, documentation, **options)


class ConfigTable:
    """Typed values of a table of keys. The attributes are read-only."""

    texts: Mapping[str, str]
    """The configs that were set, as text."""

    def __init__(self, values: Mapping[str, object], texts: Mapping[str, str]) -> None:
        for key in keys_of(type(self)):
            self.__dict__[key.attribute] = values.get(key.name, key.default)
        self.__dict__["texts"] = MappingProxyType(dict(texts))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def value_of(self, name: str) -> object:
        return self.__dict__[name.replace(".", "_")]


def keys_of(table: type) -> Iterable[ConfigKey[Any]]:
    """Returns the keys of a table, including the keys of its base classes."""
    return [key for cls in table.__mro__ for key in vars(cls).values() if isinstance(key, ConfigKey)]
