"""Reads DER, the encoding of certificates: tag, length, content. Only what certificates use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["DerError", "DerValue", "oid_text", "read_value", "values_in"]


class DerError(ValueError):
    """The bytes are not DER, or not of the expected structure."""


class DerValue(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes
    """Tag, length and content."""


def read_value(data: bytes) -> DerValue:
    """Returns the first value of `data`. Raises DerError if it is not complete."""
    value = next(values_in(data), None)
    if value is None:
        raise DerError("there is no value")
    return value


def values_in(data: bytes) -> Iterator[DerValue]:
    """Yields the values that follow each other in `data`: the members of a sequence or set."""
    position = 0
    while position < len(data):
        start = position
        if position + 2 > len(data):
            raise DerError("a value has no length")
        tag, length = data[position], data[position + 1]
        position += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            if not 1 <= size <= 4:
                raise DerError("a value has no definite length")
            position += size
        if position + length > len(data):
            raise DerError("a value ends too early")
        position += length
        yield DerValue(tag, data[position - length : position], data[start:position])


def oid_text(content: bytes) -> str:
    """Returns the dotted text of an object identifier."""
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise DerError("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
