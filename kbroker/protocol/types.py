"""Primitive types of schemas, as constructs. Integers are construct's types; the others have Kafka's two encodings.

A type reads `flexible` from construct's parameters. Lengths are INT16 or INT32 before a message's first flexible
version, and an unsigned varint of length + 1 (null = 0) from then on. All types except those of fixed width can be
null; `versions.Field` decides whether null is allowed.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sized
from typing import Any

import construct

__all__ = [
    "MAX_STRING",
    "ZERO_UUID",
    "Array",
    "Blob",
    "Bool",
    "Bytes",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Records",
    "String",
    "String16",
    "Text",
    "UInt16",
    "UInt32",
    "Uuid",
    "read_exactly",
    "read_unsigned_varint",
    "unsigned_varint",
]

Int8 = construct.Int8sb
Int16 = construct.Int16sb
Int32 = construct.Int32sb
Int64 = construct.Int64sb
UInt16 = construct.Int16ub
UInt32 = construct.Int32ub
Float64 = construct.Float64b
Bool = construct.Flag
Uuid = construct.Bytes(16)

ZERO_UUID = bytes(16)
MAX_STRING = 0x7FFF


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_exactly(stream: io.BytesIO, size: int, path: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise construct.StreamError(f"{size} bytes announced, {len(data)} left", path=path)
    return data


def read_unsigned_varint(stream: io.BytesIO, path: str) -> int:
    value = 0
    for shift in range(0, 35, 7):
        byte = read_exactly(stream, 1, path)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise construct.IntegerError("varint longer than five bytes", path=path)


def _bytes_left(stream: io.BytesIO) -> int:
    return len(stream.getbuffer()) - stream.tell()


class _Sized(construct.Construct):  # type: ignore[misc]
    """Type with a length, then that many bytes or elements."""

    prefix = struct.Struct(">i")
    always_fixed = False

    def _read_length(self, stream: io.BytesIO, context: Any, path: str) -> int | None:
        if context._params.flexible and not self.always_fixed:
            length = read_unsigned_varint(stream, path) - 1
        else:
            (length,) = self.prefix.unpack(read_exactly(stream, self.prefix.size, path))
        return None if length < 0 else length

    def _write_length(self, value: Sized | None, stream: io.BytesIO, context: Any) -> None:
        length = -1 if value is None else len(value)
        if context._params.flexible and not self.always_fixed:
            stream.write(unsigned_varint(length + 1))
        else:
            stream.write(self.prefix.pack(length))


class Text(_Sized):
    """UTF-8, at most 32,767 bytes."""

    prefix = struct.Struct(">h")

    def __init__(self, *, always_fixed: bool = False) -> None:
        super().__init__()
        self.always_fixed = always_fixed

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> str | None:
        length = self._read_length(stream, context, path)
        if length is None:
            return None
        if length > MAX_STRING:
            raise construct.StringError(f"string of {length} bytes", path=path)
        try:
            return read_exactly(stream, length, path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise construct.StringError(str(error), path=path) from error

    def _build(self, value: str | None, stream: io.BytesIO, context: Any, path: str) -> str | None:
        data = None if value is None else value.encode("utf-8")
        if data is not None and len(data) > MAX_STRING:
            raise construct.StringError(f"string of {len(data)} bytes", path=path)
        self._write_length(data, stream, context)
        stream.write(data or b"")
        return value


class Blob(_Sized):
    """Opaque bytes. `is_records`: record batches, which the compiled codec returns as a view."""

    def __init__(self, *, is_records: bool = False) -> None:
        super().__init__()
        self.is_records = is_records

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> bytes | None:
        length = self._read_length(stream, context, path)
        return None if length is None else read_exactly(stream, length, path)

    def _build(self, value: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        self._write_length(value, stream, context)
        stream.write(value or b"")
        return value


class Array(_Sized):
    """A count, then that many elements of one type."""

    def __init__(self, element: Any) -> None:
        super().__init__()
        self.element = element

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> list[Any] | None:
        count = self._read_length(stream, context, path)
        if count is None:
            return None
        if count > _bytes_left(stream):
            raise construct.RangeError(f"{count} elements announced, {_bytes_left(stream)} bytes left", path=path)
        return [self._element(self.element._parsereport(stream, context, path), path) for _ in range(count)]

    def _build(self, value: list[Any] | None, stream: io.BytesIO, context: Any, path: str) -> Any:
        self._write_length(value, stream, context)
        for element in value or ():
            self.element._build(self._element(element, path), stream, context, path)
        return value

    def _element(self, value: Any, path: str) -> Any:
        if value is None:
            raise construct.ValidationError("null inside an array", path=path)
        return value


String = Text()
String16 = Text(always_fixed=True)
Bytes = Blob()
Records = Blob(is_records=True)
