"""Classes of decoded messages: one slotted class for each struct, for all versions, generated from the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

__all__ = ["Value", "bare_class", "shared_default", "value_class", "value_maker"]


class _FieldLike(Protocol):
    name: str

    def default(self) -> Any: ...


class Value:
    """Value of a struct. Keyword arguments set members; other members have the schema's defaults."""

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
    """Creates the class of a struct. Its constructor is compiled on the first call, so unused schemas cost no time."""

    def __init__(self: Value, **members: Any) -> None:
        constructor = _constructor(fields)
        type.__setattr__(made, "__init__", constructor)
        constructor(self, **members)

    names = tuple(field.name for field in fields)
    made = type(name, (Value,), {"__slots__": names, "names": names, "__init__": __init__})
    return made


def bare_class(cls: type[Value]) -> type[Value]:
    """Creates a subclass without a constructor, for decoders, which set all members.

    Halves the time to create a value.
    """
    return type(cls.__name__, (cls,), {"__slots__": (), "__init__": object.__init__})


def shared_default(cls: type[Value]) -> Value:
    """Returns the shared default value of a struct. It is immutable: assign a new value instead of changing it."""

    def refuse(self: Value, name: str, value: Any) -> None:
        raise AttributeError(
            f"the default {cls.__name__} is shared and read-only: assign a new value instead of setting {name}"
        )

    frozen = type(cls.__name__, (cls,), {"__slots__": ()})
    made: Value = frozen()
    type.__setattr__(frozen, "__setattr__", refuse)
    return made


def value_maker(bare: type[Value], fields: Sequence[_FieldLike]) -> Callable[..., Any]:
    """Returns a function equivalent to the constructor that takes a third of the time, for hot paths."""
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
    """Returns the source of parameters and of assignments to `self`, and the names that both use."""
    names: dict[str, Any] = {"FRESH": object()}
    parameters, body = [], []
    for field in fields:
        default = field.default()
        if isinstance(default, list):
            parameters.append(f"{field.name}=FRESH")
            body.append(f"self.{field.name} = [] if {field.name} is FRESH else {field.name}")
        else:
            names[f"default_{field.name}"] = default
            parameters.append(f"{field.name}=default_{field.name}")
            body.append(f"self.{field.name} = {field.name}")
    return f"*, {', '.join(parameters)}" if parameters else "", "\n    ".join(body or ["pass"]), names
