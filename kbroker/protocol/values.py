"""What a decoded message is: a slotted class for each struct, one for all versions, made from the schema's fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

__all__ = ["Value", "bare_class", "shared_default", "value_class", "value_maker"]


class _FieldLike(Protocol):
    name: str

    def default(self) -> Any: ...


class Value:
    """A struct's value. Keyword arguments set members; the others hold the schema's defaults."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]

    if TYPE_CHECKING:

        def __init__(self, **members: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or other.names is not self.names:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.names)})"


def value_class(name: str, fields: Sequence[_FieldLike]) -> type[Value]:
    """The constructor is compiled at the first call: a schema that is only declared costs nothing."""

    def __init__(self: Value, **members: Any) -> None:
        constructor = _constructor(fields)
        type.__setattr__(made, "__init__", constructor)
        constructor(self, **members)

    names = tuple(each.name for each in fields)
    made = type(name, (Value,), {"__slots__": names, "names": names, "__init__": __init__})
    return made


def bare_class(cls: type[Value]) -> type[Value]:
    """The same without a constructor: made in half the time, by a decoder, which sets every member itself."""
    return type(cls.__name__, (cls,), {"__slots__": (), "__init__": object.__init__})


def shared_default(cls: type[Value]) -> Value:
    """The one value of a struct with nothing but defaults. It refuses changes: assign a new value instead."""

    def refuse(self: Value, name: str, value: Any) -> None:
        raise AttributeError(f"a default {cls.__name__} is shared: assign a new one, do not set its {name}")

    frozen = type(cls.__name__, (cls,), {"__slots__": ()})
    made: Value = frozen()
    type.__setattr__(frozen, "__setattr__", refuse)
    return made


def value_maker(bare: type[Value], fields: Sequence[_FieldLike]) -> Callable[..., Any]:
    """A function that does what the class's constructor does, in a third of the time: for hot paths."""
    parameters, body, names = _assignments(fields)
    names["bare"] = bare
    exec(f"def make({parameters}):\n    self = bare()\n    {body}\n    return self", names)
    made: Callable[..., Any] = names["make"]
    return made


def _constructor(fields: Sequence[_FieldLike]) -> Any:
    parameters, body, names = _assignments(fields)
    exec(f"def __init__(self, {parameters}):\n    {body}", names)
    return names["__init__"]


def _assignments(fields: Sequence[_FieldLike]) -> tuple[str, str, dict[str, Any]]:
    """Parameters, the statements that set `self` by them, and the names that both need."""
    names: dict[str, Any] = {"FRESH": object()}
    parameters, body = [], []
    for each in fields:
        default = each.default()
        if isinstance(default, list):
            parameters.append(f"{each.name}=FRESH")
            body.append(f"self.{each.name} = [] if {each.name} is FRESH else {each.name}")
        else:
            names[f"default_{each.name}"] = default
            parameters.append(f"{each.name}=default_{each.name}")
            body.append(f"self.{each.name} = {each.name}")
    return f"*, {', '.join(parameters)}" if parameters else "", "\n    ".join(body or ["pass"]), names
