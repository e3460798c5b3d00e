"""Schemas: fields with version ranges, and structs and messages of fields.

A schema declares for all versions which fields exist (`since`, `until`), since when they are nullable, which are
tagged, and since when the message is flexible. All of these are constructs: `MESSAGE.parse(data, version=9)` and
`MESSAGE.build(value, version=9)` are the slow reference implementation. The compiled codecs must produce the same
bytes.
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
"""A version larger than all others, for "never flexible" and "never nullable"."""

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
        """Returns the default, which the field has in versions without it.

        A list is new; a struct is shared and immutable.
        """
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
    """Declares a field. `nullable`: first version in which it may be null. `tag`: number of a tagged field."""
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
    """Fields in wire order. Calling the struct creates a value: `TopicData(name="orders")`."""

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
        """Returns the class whose instances a decoder creates."""
        if self._bare_value is None:
            self._bare_value = bare_class(self.value)
        return self._bare_value

    def maker(self) -> Callable[..., Any]:
        """Returns a faster equivalent of calling the struct, for hot paths."""
        return value_maker(self.bare_value(), self.fields)

    def shared_default(self) -> Value:
        if self._default is None:
            self._default = shared_default(self.value)
        return self._default

    def untagged(self, version: int) -> list[Field]:
        return [member for member in self.fields if member.tag is None and member.is_in(version)]

    def tagged(self, version: int) -> list[Field]:
        return sorted(
            (member for member in self.fields if member.tag is not None and member.is_in(version)),
            key=lambda member: member.tag or 0,
        )

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> Value:
        version = context._params.version
        value = self.value()
        for member in self.untagged(version):
            setattr(value, member.name, member._parsereport(stream, context, f"{path} -> {member.name}"))
        if context._params.flexible:
            self._parse_tagged(value, stream, context, path)
        return value

    def _parse_tagged(self, value: Value, stream: io.BytesIO, context: Any, path: str) -> None:
        known = {member.tag: member for member in self.tagged(context._params.version)}
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
        for member in self.untagged(version):
            member._build(getattr(value, member.name), stream, context, f"{path} -> {member.name}")
        if context._params.flexible:
            present = [member for member in self.tagged(version) if getattr(value, member.name) != member.default()]
            stream.write(unsigned_varint(len(present)))
            for member in present:
                inner = io.BytesIO()
                member._build(getattr(value, member.name), inner, context, path)
                stream.write(unsigned_varint(member.tag or 0) + unsigned_varint(inner.tell()) + inner.getvalue())
        return value


class Message(Struct):
    """A top-level struct with its range of versions. From version `flexible` on it has tags and compact lengths."""

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
