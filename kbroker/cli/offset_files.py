"""Offsets of a group as files: JSON, CSV with a heading, or the bare CSV that kafka-consumer-groups reads and writes.

JSON:  {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 7, "metadata": ""}]}
CSV:   topic,partition,offset,metadata under a line that says so
Kafka: topic,partition,offset without one; or group,topic,partition,offset, which it writes for several groups
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from kbroker.client.offsets import CommittedOffset, GroupOffsets
from kbroker.errors import UserError

__all__ = ["FORMATS", "read_offsets", "write_offsets"]

HEADING: Final = ("topic", "partition", "offset", "metadata")
FORMATS: Final = ("csv", "json", "kafka")

_LARGEST: Final = (1 << 63) - 1

Offsets = dict[str, dict[int, CommittedOffset]]


def write_offsets(file_format: str, group: str, offsets: GroupOffsets) -> str:
    rows = [
        (topic, partition, committed.offset, committed.metadata)
        for topic, partitions in sorted(offsets.items())
        for partition, committed in sorted(partitions.items())
    ]
    if file_format == "json":
        entries = [dict(zip(HEADING, row, strict=True)) for row in rows]
        return json.dumps({"group": group, "offsets": entries}, indent=2, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if file_format == "kafka":
        writer.writerows(row[:3] for row in rows)
    else:
        writer.writerows([HEADING, *rows])
    return text.getvalue()


def read_offsets(text: str, group: str) -> Offsets:
    """Whichever of the forms it is; UserError says which line is none. Other groups' lines are passed over."""
    return _read_json(text) if text.lstrip().startswith(("{", "[")) else _read_csv(text, group)


def _read_csv(text: str, group: str) -> Offsets:
    offsets: Offsets = {}
    columns: Sequence[str] | None = None
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if not cells:
                continue
            if columns is None:
                columns = _columns_of(cells)
                if columns is cells:
                    continue
            if len(cells) != len(columns):
                raise ValueError
            entry = dict(zip(columns, cells, strict=True))
            if entry.get("group", group) == group:
                _add(offsets, entry)
    except (ValueError, KeyError, csv.Error):
        raise UserError(f"line {reader.line_num} of the file is not topic,partition,offset") from None
    return offsets


def _columns_of(first: list[str]) -> Sequence[str]:
    """The first line itself if it is a heading; else what Kafka means by so many columns."""
    if set(HEADING[:3]) <= set(first):
        return first
    return ("group", *HEADING[:3]) if len(first) == len(HEADING) else HEADING[:3]


def _read_json(text: str) -> Offsets:
    offsets: Offsets = {}
    try:
        document = json.loads(text)
    except ValueError as problem:
        raise UserError(f"the file is no JSON: {problem}") from None
    entries = document.get("offsets") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise UserError("the file has no list of offsets")
    for number, entry in enumerate(entries):
        try:
            _add(offsets, entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"entry {number} of the file has no topic, partition and offset: {entry}") from None
    return offsets


def _add(offsets: Offsets, entry: dict[str, Any]) -> None:
    partition, offset = int(entry["partition"]), int(entry["offset"])
    topic, metadata = entry["topic"], entry.get("metadata") or ""
    if not (isinstance(topic, str) and topic and isinstance(metadata, str)):
        raise ValueError(topic)
    if not (0 <= partition <= 0x7FFFFFFF and 0 <= offset <= _LARGEST):
        raise ValueError(offset)
    offsets.setdefault(topic, {})[partition] = CommittedOffset(offset, metadata)
