"""Tables in the files of archive, replay and transform, beside the keys of every pipeline. Knows no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.config.toml_file import TomlTable
from kbroker.pipeline.definition import (
    PipelineStep,
    TableOnDisk,
    TableSink,
    TopicSink,
    TopicsToRead,
    ValueFormat,
    read_steps,
    read_table,
    read_tables,
    read_topic_sink,
    read_topic_source,
    read_values,
)

__all__ = ["ArchiveJob", "ReplayJob", "TransformJob", "read_archive", "read_replay", "read_transform"]


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    source: TopicsToRead
    sink: TableSink
    values: ValueFormat | None = None
    steps: tuple[PipelineStep, ...] = ()
    tables: Mapping[str, TableOnDisk] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransformJob:
    source: TopicsToRead
    sink: TopicSink
    values: ValueFormat | None = None
    steps: tuple[PipelineStep, ...] = ()
    tables: Mapping[str, TableOnDisk] = field(default_factory=dict)
    output_mode: str = "append"


@dataclass(frozen=True, slots=True)
class ReplayJob:
    source: TableSink
    sink: TopicSink
    speed: float | None = None
    """Relative to the original speed; None: as fast as possible."""
    interval_s: int = 10
    """Event time of one batch."""
    topics: tuple[str, ...] = ()
    """Topics to replay; empty: all."""


def read_archive(file: TomlTable) -> ArchiveJob:
    source = read_topic_source(file)
    sink = _read_table(file, "sink")
    return ArchiveJob(source, sink, read_values(file), read_steps(file), read_tables(file))


def _read_table(file: TomlTable, key: str) -> TableSink:
    file.require(key, "the table: format and path")
    table = file.table(key)
    found = read_table(table)
    table.end()
    return found


def read_transform(file: TomlTable) -> TransformJob:
    source = read_topic_source(file)
    output_mode = file.choice("output_mode", ("append", "update", "complete"), "append")
    return TransformJob(
        source,
        read_topic_sink(file, bootstrap=source.bootstrap),
        read_values(file),
        read_steps(file),
        read_tables(file),
        output_mode,
    )


def read_replay(file: TomlTable) -> ReplayJob:
    return ReplayJob(
        _read_table(file, "source"),
        read_topic_sink(file, needs_topic=False),
        file.fraction("speed", 1.0) if "speed" in file else None,
        file.number("interval_seconds", 10),
        file.texts("topics", ()),
    )
