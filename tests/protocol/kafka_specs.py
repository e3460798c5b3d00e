"""Kafka's own message specs, read from its jars, and both sides flattened to what travels in one version.

A spec or a schema at one version becomes a list of `Line`s in the order of the wire, tagged fields last and by tag, the
fields of a struct behind the field that holds it. Two equal lists mean the same bytes.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.protocol import types
from kbroker.protocol.versions import Field, Message, Struct

NO_VERSIONS = range(0)
TYPE_NAMES = {
    types.Int8: "int8",
    types.Int16: "int16",
    types.Int32: "int32",
    types.Int64: "int64",
    types.UInt16: "uint16",
    types.UInt32: "uint32",
    types.Float64: "float64",
    types.Bool: "bool",
    types.Uuid: "uuid",
}
# What a field holds where the spec names no default. Kafka starts records as null; here they start empty.
IMPLIED_DEFAULTS: dict[str, Any] = {
    "bool": False,
    "bytes": b"",
    "float64": 0.0,
    "records": b"",
    "string": "",
    "uuid": types.ZERO_UUID,
}


class Line(NamedTuple):
    """One field at one version. `default` is a struct's name where a struct of defaults is meant."""

    path: str
    type: str
    nullable: bool
    tag: int | None
    compact: bool
    default: Any


@dataclass(frozen=True)
class Spec:
    """One JSON file of a jar. `kind`: request, response, header, data, coordinator-key or coordinator-value."""

    name: str
    kind: str
    api_key: int | None
    versions: range
    flexible: range
    fields: list[dict[str, Any]]
    common: dict[str, list[dict[str, Any]]]


def read_specs(jar: Path) -> dict[str, Spec]:
    """Name -> spec, with stable versions only."""
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        parsed = [json.loads(_without_comments(archive.read(name).decode())) for name in names]
    # Only requests say that their latest version is unstable; it is so for the answer too.
    unstable = {member["apiKey"] for member in parsed if member.get("latestVersionUnstable")}
    specs = [_spec(member, is_stable=member.get("apiKey") not in unstable) for member in parsed]
    return {spec.name: spec for spec in specs}


def _spec(data: dict[str, Any], *, is_stable: bool) -> Spec:
    versions = parse_versions(data["validVersions"])
    return Spec(
        name=data["name"],
        kind=data["type"],
        api_key=data.get("apiKey"),
        versions=versions if is_stable else versions[:-1],
        flexible=parse_versions(data.get("flexibleVersions", "none")),
        fields=data.get("fields", []),
        common={member["name"]: member["fields"] for member in data.get("commonStructs", [])},
    )


def _without_comments(text: str) -> str:
    """Drops `// …` to the end of the line, but not inside a string."""
    return re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", text)


def parse_versions(text: str) -> range:
    """ "3", "3-5", "3+" and "none"; what is open at the end reaches further than any message."""
    if text == "none":
        return NO_VERSIONS
    first, _, last = text.partition("-")
    if text.endswith("+"):
        return range(int(text[:-1]), 1 << 15)
    return range(int(first), int(last or first) + 1)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def spec_lines(spec: Spec, version: int) -> list[Line]:
    return list(_lines_of_specs(spec, spec.fields, version, ""))


def _lines_of_specs(spec: Spec, fields: list[dict[str, Any]], version: int, prefix: str) -> Iterator[Line]:
    present = [member for member in fields if version in _present_versions(member)]
    is_tagged = {member["name"]: version in _versions(member, "taggedVersions") for member in present}
    tagged = sorted((member for member in present if is_tagged[member["name"]]), key=lambda member: member["tag"])
    for member in [member for member in present if not is_tagged[member["name"]]] + tagged:
        path = prefix + snake_case(member["name"])
        kind = member["type"].removeprefix("[]")
        flexible = version in spec.flexible and member.get("flexibleVersions") != "none"
        yield Line(
            path,
            member["type"],
            version in _versions(member, "nullableVersions"),
            member["tag"] if is_tagged[member["name"]] else None,
            flexible,
            _spec_default(member),
        )
        if kind[0].isupper():
            inner = member.get("fields") or spec.common[kind]
            yield from _lines_of_specs(spec, inner, version, f"{path}.")


def _versions(member: dict[str, Any], name: str) -> range:
    return parse_versions(member.get(name, "none"))


def _present_versions(member: dict[str, Any]) -> range:
    """A spec may say just where a field is tagged: it is nowhere else."""
    return _versions(member, "versions" if "versions" in member else "taggedVersions")


def _spec_default(member: dict[str, Any]) -> Any:
    kind, default = member["type"], member.get("default")
    if "default" in member and default in (None, "null"):
        return None
    if kind.startswith("[]"):
        return []
    if kind[0].isupper():
        return kind
    if default in (None, ""):
        return IMPLIED_DEFAULTS.get(kind, 0)
    if kind == "bool":
        return str(default).lower() == "true"
    if kind == "string":
        return default
    return float(default) if kind == "float64" else int(str(default), 0)


def schema_lines(message: Message, version: int) -> list[Line]:
    return list(_lines_of_schema(message, version, message.is_flexible(version), ""))


def _lines_of_schema(struct: Struct, version: int, flexible: bool, prefix: str) -> Iterator[Line]:
    for member in [*struct.untagged(version), *struct.tagged(version)]:
        path = prefix + member.name
        compact = flexible and not (isinstance(member.subcon, types.Text) and member.subcon.always_fixed)
        yield Line(
            path, _type_name(member.subcon), member.is_nullable_in(version), member.tag, compact, _default(member)
        )
        inner = member.subcon.element if isinstance(member.subcon, types.Array) else member.subcon
        if isinstance(inner, Struct):
            yield from _lines_of_schema(inner, version, flexible, f"{path}.")


def _type_name(subcon: Any) -> str:
    match subcon:
        case types.Array():
            return f"[]{_type_name(subcon.element)}"
        case types.Text():
            return "string"
        case types.Blob():
            return "records" if subcon.is_records else "bytes"
        case Struct():
            return subcon.name
    return TYPE_NAMES[subcon]


def _default(member: Field) -> Any:
    return member.default_value.name if isinstance(member.default_value, Struct) else member.default_value
