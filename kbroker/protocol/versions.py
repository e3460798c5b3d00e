"""Fields with version ranges, and the structs and messages made of them.

A message file says once, for every version, which fields exist (`since`, `until`), from which version on they may be
null, which are tagged, and from which version on the message is flexible. Everything here is a construct:
`MESSAGE.parse(data, version=9)` and `MESSAGE.build(value, version=9)` are the slow reference that the compiled
codecs must equal byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import construct

from kbroker.protocol.types import (
    ZERO_UUID,
    Array,
    Bool,
    Float64,
    Text,
    Uuid,
    _Sized,
    read_exactly,
    read_unsigned_varint,
    unsigned_varint,
)
from kbroker.protocol.values import Value, bare_class, shared_default, value_class, value_maker

__all__ = ["NEVER", "Field", "Message", "Struct", "field"]

NEVER = 1 << 15
"""A version that no message reaches: the first flexible one of a message that never is."""

_UNSET: Any = object()


class Field(construct.Subconstruct):  # type: ignore[misc]
    """A named member of a struct, present in the versions `since` to `until`."""

    def __init__(
        self, name: str, subcon: Any, since: int, until: int, nullable: int, tag: int | None, default: Any
    ) -> None:
        super().__init__(subcon)
        self.name = name
        self.since = since
        self.until = until
        self.nullable = nullable
        self.tag = tag
        self.default_value = _implied_default(subcon) if default is _UNSET else default

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        return version >= self.nullable

    def default(self) -> Any:
        """What the field holds in a version that lacks it. A list is fresh; a struct is shared and refuses changes."""
        if isinstance(self.default_value, list):
            return []
        if isinstance(self.default_value, Struct):
            return self.default_value.shared_default()
        return self.default_value

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> Any:
        nullable = self.is_nullable_in(context._params.version)
        if isinstance(self.subcon, Struct) and nullable:
            is_null = read_exactly(stream, 1, path)[0] > 0x7F
            return None if is_null else self.subcon._parsereport(stream, context, path)
        value = self.subcon._parsereport(stream, context, path)
        if value is None and not nullable:
            raise construct.ValidationError(f"{self.name} may not be null", path=path)
        return value

    def _build(self, value: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        nullable = self.is_nullable_in(context._params.version)
        if value is None and not nullable:
            raise construct.ValidationError(f"{self.name} may not be null", path=path)
        if isinstance(self.subcon, Struct) and nullable:
            stream.write(b"\xff" if value is None else b"\x01")
            if value is None:
                return value
        self.subcon._build(value, stream, context, path)
        return value


def field(
    name: str,
    subcon: Any,
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: int = NEVER,
    tag: int | None = None,
    default: Any = _UNSET,
) -> Field:
    """`nullable`: the first version in which it may be null. `tag`: its number, where it is a tagged field."""
    return Field(name, subcon, since, until, nullable, tag, default)


def _implied_default(subcon: Any) -> Any:
    if isinstance(subcon, Array):
        return []
    if isinstance(subcon, Text):
        return ""
    if isinstance(subcon, _Sized):
        return b""
    if isinstance(subcon, Struct):
        return subcon
    if subcon is Uuid:
        return ZERO_UUID
    if subcon is Bool:
        return False
    return 0.0 if subcon is Float64 else 0


class Struct(construct.Construct):  # type: ignore[misc]
    """Fields in the order of the wire; calling it makes a value: `TopicData(name="orders")`."""

    def __init__(self, name: str, *fields: Field) -> None:
        super().__init__()
        self.name = name
        self.fields: Sequence[Field] = fields
        self.value: type[Value] = value_class(name, fields)
        self._bare_value: type[Value] | None = None
        self._default: Value | None = None

    def __call__(self, **members: Any) -> Any:
        return self.value(**members)

    def bare_value(self) -> type[Value]:
        """What a decoder makes its values of."""
        if self._bare_value is None:
            self._bare_value = bare_class(self.value)
        return self._bare_value

    def maker(self) -> Callable[..., Any]:
        """A function for hot paths that makes values as calling the struct does."""
        return value_maker(self.bare_value(), self.fields)

    def shared_default(self) -> Value:
        if self._default is None:
            self._default = shared_default(self.value)
        return self._default

    def untagged(self, version: int) -> list[Field]:
        return [each for each in self.fields if each.tag is None and each.is_in(version)]

    def tagged(self, version: int) -> list[Field]:
        return sorted(
            (each for each in self.fields if each.tag is not None and each.is_in(version)),
            key=lambda each: each.tag or 0,
        )

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> Value:
        version = context._params.version
        value = self.value()
        for each in self.untagged(version):
            setattr(value, each.name, each._parsereport(stream, context, f"{path} -> {each.name}"))
        if context._params.flexible:
            self._parse_tagged(value, stream, context, path)
        return value

    def _parse_tagged(self, value: Value, stream: io.BytesIO, context: Any, path: str) -> None:
        known = {each.tag: each for each in self.tagged(context._params.version)}
        for _ in range(read_unsigned_varint(stream, path)):
            tag = read_unsigned_varint(stream, path)
            data = read_exactly(stream, read_unsigned_varint(stream, path), path)
            if tag in known:
                inner = io.BytesIO(data)
                setattr(value, known[tag].name, known[tag]._parsereport(inner, context, path))
                if inner.read():
                    raise construct.StreamError(f"tag {tag} is longer than its field", path=path)

    def _build(self, value: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        version = context._params.version
        for each in self.untagged(version):
            each._build(getattr(value, each.name), stream, context, f"{path} -> {each.name}")
        if context._params.flexible:
            present = [each for each in self.tagged(version) if getattr(value, each.name) != each.default()]
            stream.write(unsigned_varint(len(present)))
            for each in present:
                inner = io.BytesIO()
                each._build(getattr(value, each.name), inner, context, path)
                stream.write(unsigned_varint(each.tag or 0) + unsigned_varint(inner.tell()) + inner.getvalue())
        return value


class Message(Struct):
    """A struct that travels alone, with versions of its own; from `flexible` on with tags and compact lengths."""

    def __init__(self, name: str, *fields: Field, versions: tuple[int, int], flexible: int = NEVER) -> None:
        super().__init__(name, *fields)
        self.first_version, self.last_version = versions
        self.flexible_since = flexible

    @property
    def versions(self) -> range:
        return range(self.first_version, self.last_version + 1)

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_since

    def parse(self, data: bytes | bytearray | memoryview, version: int) -> Any:
        return super().parse(data, version=version, flexible=self.is_flexible(version))

    def build(self, value: Any, version: int) -> bytes:
        built: bytes = super().build(value, version=version, flexible=self.is_flexible(version))
        return built
