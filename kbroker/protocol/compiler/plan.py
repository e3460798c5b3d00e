"""Flattens a schema at one version into steps, so that the emitted code does not check versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbroker.protocol.types import (
    Array,
    Blob,
    Bool,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Text,
    UInt16,
    UInt32,
    Uuid,
)
from kbroker.protocol.versions import Field, Message, Struct

__all__ = ["ArrayStep", "BlobStep", "FixedStep", "Step", "StructPlan", "StructStep", "TagStep", "TextStep", "plan"]

_CODES = {
    Int8: "b",
    Int16: "h",
    Int32: "i",
    Int64: "q",
    UInt16: "H",
    UInt32: "I",
    Float64: "d",
    Bool: "?",
    Uuid: "16s",
}
_WIDTHS = {"b": 1, "h": 2, "i": 4, "q": 8, "H": 2, "I": 4, "d": 8, "?": 1, "16s": 16}


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Fixed-width field. `code`: its format character in the struct module."""

    name: str
    code: str


@dataclass(frozen=True, slots=True)
class TextStep:
    name: str
    nullable: bool
    compact: bool


@dataclass(frozen=True, slots=True)
class BlobStep:
    name: str
    nullable: bool
    compact: bool
    is_records: bool


@dataclass(frozen=True, slots=True)
class ArrayStep:
    name: str
    nullable: bool
    compact: bool
    element: Step


@dataclass(frozen=True, slots=True)
class StructStep:
    name: str
    nullable: bool
    plan: StructPlan


Step = FixedStep | TextStep | BlobStep | ArrayStep | StructStep


@dataclass(frozen=True, slots=True)
class TagStep:
    tag: int
    step: Step
    field: Field


@dataclass(frozen=True, slots=True)
class StructPlan:
    struct: Struct
    flexible: bool
    steps: list[Step]
    tags: list[TagStep]
    absent: list[Field]

    @property
    def least_size(self) -> int:
        return sum(least_size(step) for step in self.steps) + self.flexible


def plan(message: Message, version: int) -> StructPlan:
    if version not in message.versions:
        raise ValueError(f"{message.name} has no version {version}")
    return _plan_struct(message, version, message.is_flexible(version))


def least_size(step: Step) -> int:
    """Returns the minimum size of a step in bytes. It limits the valid element counts of an array."""
    match step:
        case FixedStep():
            return _WIDTHS[step.code]
        case StructStep():
            return 1 if step.nullable else step.plan.least_size
        case TextStep():
            return 1 if step.compact else 2
        case _:
            return 1 if step.compact else 4


def _plan_struct(struct: Struct, version: int, flexible: bool) -> StructPlan:
    tagged = struct.tagged(version) if flexible else []
    return StructPlan(
        struct,
        flexible,
        steps=[_plan_field(field, version, flexible) for field in struct.untagged(version)],
        tags=[TagStep(field.tag or 0, _plan_field(field, version, flexible), field) for field in tagged],
        absent=[field for field in struct.fields if not field.is_in(version) or field in tagged],
    )


def _plan_field(field: Field, version: int, flexible: bool) -> Step:
    return _plan_type(field.name, field.subcon, field.is_nullable_in(version), version, flexible)


def _plan_type(name: str, subcon: Any, nullable: bool, version: int, flexible: bool) -> Step:
    match subcon:
        case Text():
            return TextStep(name, nullable, flexible and not subcon.always_fixed)
        case Blob():
            return BlobStep(name, nullable, flexible, subcon.is_records)
        case Array():
            return ArrayStep(name, nullable, flexible, _plan_type("", subcon.element, False, version, flexible))
        case Struct():
            return StructStep(name, nullable, _plan_struct(subcon, version, flexible))
        case _:
            return FixedStep(name, _CODES[subcon])
