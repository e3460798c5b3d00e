"""File formats for committed offsets: JSON, CSV with a header, and the CSV of kafka-consumer-groups.

JSON:  {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 7, "metadata": ""}]}
CSV:   topic,partition,offset,metadata with this header
Kafka: topic,partition,offset without a header; group,topic,partition,offset if exported for several groups
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

from kbroker.client.offsets import CommittedOffsets, GroupOffset
from kbroker.errors import UserError

__all__ = ["FORMATS", "read_offsets", "write_offsets"]

HEADER: Final = ("topic", "partition", "offset", "metadata")
FORMATS: Final = ("csv", "json", "kafka")

_MAX_OFFSET: Final = (1 << 63) - 1

Offsets = dict[str, dict[int, GroupOffset]]


def write_offsets(file_format: str, group: str, offsets: CommittedOffsets) -> str:
    rows = [
        (topic, partition, committed.offset, committed.metadata)
        for topic, partitions in sorted(offsets.items())
        for partition, committed in sorted(partitions.items())
    ]
    if file_format == "json":
        entries = [dict(zip(HEADER, row, strict=True)) for row in rows]
        return json.dumps({"group": group, "offsets": entries}, indent=2, ensure_ascii=False) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if file_format == "kafka":
        writer.writerows(row[:3] for row in rows)
    else:
        writer.writerows([HEADER, *rows])
    return text.getvalue()


def read_offsets(text: str, group: str) -> Offsets:
    """Detects the format and reads the offsets; skips lines of other groups. Raises UserError if a line is invalid."""
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
        raise UserError(f"Line {reader.line_num} of the file is not topic,partition,offset") from None
    return offsets


def _columns_of(first: list[str]) -> Sequence[str]:
    """Returns the first line itself if it is a header; otherwise Kafka's columns for that number of cells."""
    if set(HEADER[:3]) <= set(first):
        return first
    return ("group", *HEADER[:3]) if len(first) == len(HEADER) else HEADER[:3]


def _read_json(text: str) -> Offsets:
    offsets: Offsets = {}
    try:
        document = json.loads(text)
    except ValueError as problem:
        raise UserError(f"The file is not valid JSON: {problem}") from None
    entries = document.get("offsets") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise UserError("The file has no list of offsets")
    for number, entry in enumerate(entries):
        try:
            _add(offsets, entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"Entry {number} of the file has no valid topic, partition and offset: {entry}") from None
    return offsets


def _add(offsets: Offsets, entry: dict[str, Any]) -> None:
    partition, offset = int(entry["partition"]), int(entry["offset"])
    topic, metadata = entry["topic"], entry.get("metadata") or ""
    if not (isinstance(topic, str) and topic and isinstance(metadata, str)):
        raise ValueError(topic)
    if not (0 <= partition <= 0x7FFFFFFF and 0 <= offset <= _MAX_OFFSET):
        raise ValueError(offset)
    offsets.setdefault(topic, {})[partition] = GroupOffset(offset, metadata)
