"""Values of any message at any version, made from its schema.

The generator asks nothing but a `random.Random`: a seeded one gives fast and repeatable values, the one of
`hypothesis.strategies.randoms` gives values that shrink.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kbroker.protocol import types
from kbroker.protocol.versions import Field, Message, Struct

__all__ = ["Shape", "Smallest", "filled", "fullest", "generated", "smallest", "some_values"]

LIMITS = {
    types.Int8: (-(1 << 7), (1 << 7) - 1),
    types.Int16: (-(1 << 15), (1 << 15) - 1),
    types.Int32: (-(1 << 31), (1 << 31) - 1),
    types.Int64: (-(1 << 63), (1 << 63) - 1),
    types.UInt16: (0, (1 << 16) - 1),
    types.UInt32: (0, (1 << 32) - 1),
}
FLOATS = (0.0, -0.5, 1e308, 5e-324, float("inf"), float("-inf"))
# On both sides of where a varint of length + 1 takes another byte, in bytes of UTF-8.
LENGTHS = (126, 127, 128, 16382, 16383, 16384, types.MAX_STRING)
LETTERS = "aZ9._-\x00 éЖ中𝄞"


class Shape:
    """Answers the questions that a value poses; every subclass is one way to fill a message."""

    def is_null(self) -> bool:
        raise NotImplementedError

    def is_default(self) -> bool:
        """For a tagged field: left at its default, hence not on the wire."""
        raise NotImplementedError

    def number(self, low: int, high: int) -> int:
        raise NotImplementedError

    def float64(self) -> float:
        raise NotImplementedError

    def truth(self) -> bool:
        raise NotImplementedError

    def data(self, size: int) -> bytes:
        raise NotImplementedError

    def length(self) -> int:
        raise NotImplementedError

    def text(self) -> str:
        raise NotImplementedError

    def count(self, *, of_structs: bool) -> int:
        raise NotImplementedError


class Smallest(Shape):
    """Null where it may be, else empty, else the least number."""

    def is_null(self) -> bool:
        return True

    def is_default(self) -> bool:
        return True

    def number(self, low: int, high: int) -> int:
        return low

    def float64(self) -> float:
        return float("-inf")

    def truth(self) -> bool:
        return False

    def data(self, size: int) -> bytes:
        return bytes(size)

    def length(self) -> int:
        return 0

    def text(self) -> str:
        return ""

    def count(self, *, of_structs: bool) -> int:
        return 0


class Fullest(Shape):
    """Everything is there, with the largest numbers and lengths that take more than one byte."""

    def is_null(self) -> bool:
        return False

    def is_default(self) -> bool:
        return False

    def number(self, low: int, high: int) -> int:
        return high

    def float64(self) -> float:
        return 1e308

    def truth(self) -> bool:
        return True

    def data(self, size: int) -> bytes:
        return b"\xff" * size

    def length(self) -> int:
        return 200

    def text(self) -> str:
        return "Ж" * 100

    def count(self, *, of_structs: bool) -> int:
        return 2 if of_structs else 130


class Random(Shape):
    """Mostly small, with the corners far more often than chance would have them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.structs_left = 200
        self.bytes_left = 60_000

    def is_null(self) -> bool:
        return self.chance.randrange(5) == 0

    def is_default(self) -> bool:
        return self.chance.randrange(2) == 0

    def number(self, low: int, high: int) -> int:
        corner = self.chance.randrange(8)
        if corner < 4:
            return (low, high, 0, min(1, high))[corner]
        return self.chance.randint(low, high) if corner < 6 else self.chance.randint(0, 100)

    def float64(self) -> float:
        return self.chance.choice(FLOATS)

    def truth(self) -> bool:
        return self.chance.randrange(2) == 0

    def data(self, size: int) -> bytes:
        return self.chance.randrange(1 << 64).to_bytes(8, "big") * (size // 8) + bytes(size % 8)

    def length(self) -> int:
        length = self.chance.choice(LENGTHS) if self.chance.randrange(12) == 0 else self.chance.randrange(6)
        if length > self.bytes_left:
            return 0
        self.bytes_left -= length
        return length

    def text(self) -> str:
        length = self.length()
        if length > 100:
            return "é" * (length // 2) + "x" * (length % 2)
        return "".join(self.chance.choice(LETTERS) for _ in range(length))

    def count(self, *, of_structs: bool) -> int:
        count = 130 if self.chance.randrange(40) == 0 else self.chance.randrange(4)
        if not of_structs:
            return count
        count = min(count, self.structs_left)
        self.structs_left -= count
        return count


def smallest(message: Message, version: int) -> Any:
    return _struct(message, version, Smallest())


def fullest(message: Message, version: int) -> Any:
    return _struct(message, version, Fullest())


def generated(message: Message, version: int, chance: random.Random) -> Any:
    return _struct(message, version, Random(chance))


def some_values(message: Message, version: int, count: int) -> Iterator[Any]:
    """The corners, then `count` random ones: the same in every run."""
    yield message()
    yield smallest(message, version)
    yield fullest(message, version)
    chance = random.Random(f"{message.name} {version}")
    for _ in range(count):
        yield generated(message, version, chance)


def _struct(struct: Struct, version: int, shape: Shape) -> Any:
    present = [member for member in struct.fields if member.is_in(version)]
    return struct(**{member.name: _field(member, version, shape) for member in present})


def _field(member: Field, version: int, shape: Shape) -> Any:
    if member.tag is not None and shape.is_default():
        return member.default()
    if member.is_nullable_in(version) and shape.is_null():
        return None
    return filled(member.subcon, version, shape)


def filled(subcon: Any, version: int, shape: Shape) -> Any:
    """A value of any construct of the schemas."""
    match subcon:
        case types.Text():
            return shape.text()
        case types.Blob():
            return shape.data(shape.length())
        case types.Array():
            of_structs = isinstance(subcon.element, Struct)
            return [filled(subcon.element, version, shape) for _ in range(shape.count(of_structs=of_structs))]
        case Struct():
            return _struct(subcon, version, shape)
    if subcon is types.Bool:
        return shape.truth()
    if subcon is types.Float64:
        return shape.float64()
    return shape.data(16) if subcon is types.Uuid else shape.number(*LIMITS[subcon])
