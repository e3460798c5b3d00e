"""The file of a pipeline: TOML to frozen values. Errors name the line and the reason. Knows no Spark.

Keys at the top: name, kind, checkpoint, trigger. Each kind reads its own tables; `KINDS` has one entry for each.
Relative paths start at the directory of the file. Secrets are references: `{ env = "NAME" }` or `{ file = "PATH" }`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.client.address import parse_addresses
from kbroker.config.toml_file import TomlTable, read_toml
from kbroker.errors import UserError
from kbroker.names import topic_name_problem

__all__ = [
    "AT_LEAST_ONCE",
    "AVAILABLE_NOW",
    "EXACTLY_ONCE",
    "KINDS",
    "DeadLetters",
    "Deduplication",
    "Delivery",
    "Kind",
    "Pipeline",
    "PipelineStep",
    "SparkSettings",
    "SqlStep",
    "TableOnDisk",
    "TableSink",
    "TopicSink",
    "TopicsToRead",
    "ValueFormat",
    "Watermark",
    "read_bootstrap",
    "read_duration",
    "read_location",
    "read_options",
    "read_pipeline",
    "read_steps",
    "read_table",
    "read_tables",
    "read_topic",
    "read_topic_sink",
    "read_topic_source",
    "read_topics",
    "read_values",
]

Delivery = str
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
AVAILABLE_NOW: Final = "available-now"
TABLE_FORMATS: Final = ("parquet", "delta", "iceberg")
VALUE_FORMATS: Final = ("json", "csv", "avro", "protobuf")

_DURATION: Final = re.compile(r"\d+\s*(milliseconds?|seconds?|minutes?|hours?|days?)")
_SECRET: Final = re.compile(r"(password|passwd|secret|jaas\.config|token|credential|access\.?key|private\.?key)", re.I)
# Options that Spark's connector sets itself or that would break the promise of a pipeline.
_RESERVED: Final = re.compile(
    r"(subscribe(pattern)?|assign|topic|checkpointlocation|kafka\.(bootstrap\.servers|group\.id))", re.I
)


@dataclass(frozen=True, slots=True)
class TopicsToRead:
    """Topics to read, by name or by pattern."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: str = "earliest"
    max_records_per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's Kafka source; options of the client begin with "kafka."."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Destination of records that do not parse: a topic or a directory."""

    topic: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Format of the values of the records. Without dead letters, a value that does not parse ends the pipeline."""

    format: str
    schema: str
    """DDL of columns, or the JSON of an Avro schema; for protobuf, the path of a descriptor file."""
    message: str | None = None
    """Name of the protobuf message."""
    skip_bytes: int = 0
    """Bytes before the content, for example 5 for the header of a schema registry."""
    options: Mapping[str, str] = field(default_factory=dict)
    dead_letters: DeadLetters | None = None


@dataclass(frozen=True, slots=True)
class SqlStep:
    sql: str
    place: str = field(default="", compare=False)
    """File and line, for errors."""


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Deduplication:
    columns: tuple[str, ...]


PipelineStep = SqlStep | Watermark | Deduplication


@dataclass(frozen=True, slots=True)
class TableOnDisk:
    """Table that SQL steps may join, under its name."""

    path: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSink:
    """Table to write or to read: a directory, or the name of a table in a catalog (Delta, Iceberg)."""

    format: str
    path: str | None = None
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Topic to write. None as topic: the records have a column `topic`."""

    bootstrap: str
    topic: str | None = None
    delivery: Delivery = EXACTLY_ONCE
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Contents of a file. `job` holds what the kind has read."""

    path: Path
    name: str
    kind: str
    checkpoint: str
    trigger: str
    spark: SparkSettings
    job: Any


class Kind(NamedTuple):
    """Kind of pipelines.

    `home` names a module of this package and a function in it, as "module:function". The function takes the file and
    returns the value for `Pipeline.job`; it asks for all its tables but does not call `end` on the file. The module
    `runner` has a function `start(spark, pipeline) -> list[Job]` (see jobs.py), and only that module imports pyspark.
    """

    about: str
    home: str
    runner: str


KINDS: Final[dict[str, Kind]] = {
    "archive": Kind("Topics to a table on disk.", "kinds:read_archive", "archiving"),
    "replay": Kind("A table on disk to topics.", "kinds:read_replay", "replaying"),
    "transform": Kind("Topics to a topic, through SQL.", "kinds:read_transform", "transforming"),
    "audit": Kind("Counts by topic and window at each hop.", "audit_file:read_audit", "auditing"),
    "mirror": Kind("Topics to another cluster, with their groups.", "mirror_file:read_mirror", "mirroring"),
}


def read_pipeline(path: Path) -> Pipeline:
    """Reads and checks a file. Raises UserError, with the line and the reason, if it is invalid."""
    file = read_toml(path)
    name = file.text("name", path.stem)
    if not re.fullmatch(r"[\w.-]+", name):
        raise file.problem(f"name is '{name}'; use letters, digits, '.', '_' and '-'", key="name")
    kind = file.choice("kind", KINDS)
    checkpoint = read_location(file, "checkpoint", why="a directory for the progress of this pipeline")
    trigger = read_trigger(file)
    spark = file.table("spark")
    settings = SparkSettings(
        spark.texts("packages", ()),
        tuple(_located(jar, file.path) for jar in spark.texts("jars", ())),
        read_options(spark, "conf"),
    )
    spark.end()
    module, _, function = KINDS[kind].home.partition(":")
    reader: Callable[[TomlTable], Any] = getattr(import_module(f"kbroker.pipeline.{module}"), function)
    job = reader(file)
    file.end()
    return Pipeline(path, name, kind, checkpoint, trigger, settings, job)


def read_trigger(file: TomlTable) -> str:
    """Returns "available-now", or a duration between batches; "0 seconds" starts each batch after the last one."""
    trigger: str = file.text("trigger", "0 seconds")
    if trigger != AVAILABLE_NOW and not _DURATION.fullmatch(trigger):
        raise file.problem(
            f"trigger is '{trigger}'; expected a duration, for example '10 seconds', or '{AVAILABLE_NOW}'",
            key="trigger",
        )
    return trigger


def read_duration(table: TomlTable, key: str) -> str:
    duration: str = table.text(key)
    if not _DURATION.fullmatch(duration):
        raise table.problem(
            f"{table.name_of(key)} is '{duration}'; expected a duration, for example '10 minutes'", key=key
        )
    return duration


def read_location(table: TomlTable, key: str, *, why: str = "") -> str:
    """Returns an absolute path, or a URI as it is."""
    return _located(table.text(key, why=why), table.path)


def _located(text: str, file: Path) -> str:
    return text if "://" in text else str((file.parent / text).resolve())


def read_options(table: TomlTable, key: str = "options", *, reserved: bool = True) -> dict[str, str]:
    """Returns a table of options. Values that hold secrets must refer to the environment or to a file."""
    options = table.table(key)
    return {name: _option(options, name, is_checked=reserved) for name in options.keys}


def _option(options: TomlTable, name: str, *, is_checked: bool) -> str:
    value = options.value(name)
    if is_checked and _RESERVED.fullmatch(name):
        raise options.problem(f"{options.name_of(name)} cannot be set here: the pipeline sets it", key=name)
    if isinstance(value, dict):
        return _referred(options, name, value)
    if _SECRET.search(name):
        raise options.problem(
            f"{options.name_of(name)} is a secret: do not write it into the file. "
            f'Use {{ env = "NAME" }} or {{ file = "PATH" }}',
            key=name,
        )
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise options.problem(f"{options.name_of(name)} must be a text, a number, true or false", key=name)
    return str(value)


def _referred(options: TomlTable, name: str, reference: Mapping[str, Any]) -> str:
    shown = options.name_of(name)
    match [*reference.items()]:
        case [("env", str(variable))]:
            if variable in os.environ:
                return os.environ[variable]
            raise options.problem(f"{shown} needs the environment variable {variable}, which is not set", key=name)
        case [("file", str(path))]:
            return _read_file(options, name, path).strip()
    raise options.problem(f'{shown} must be a text, {{ env = "NAME" }} or {{ file = "PATH" }}', key=name)


def _read_file(table: TomlTable, key: str, path: str) -> str:
    try:
        return Path(_located(path, table.path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not text in UTF-8"
        raise table.problem(f"{table.name_of(key)} refers to {path}, which cannot be read: {reason}", key=key) from None


def read_bootstrap(table: TomlTable, default: str | None = None) -> str:
    bootstrap: str = table.text("bootstrap", default, why="HOST:PORT of a broker")
    try:
        parse_addresses(bootstrap)
    except UserError as problem:
        raise table.problem(f"{table.name_of('bootstrap')}: {problem}", key="bootstrap") from None
    return bootstrap


def read_topic(table: TomlTable, key: str) -> str:
    topic: str = table.text(key)
    check_topics(table, key, (topic,))
    return topic


def check_topics(table: TomlTable, key: str, topics: tuple[str, ...]) -> None:
    for topic in topics:
        problem = topic_name_problem(topic)
        if problem is not None:
            raise table.problem(f"{table.name_of(key)}: {problem}", key=key)


def read_topic_source(file: TomlTable, key: str = "source") -> TopicsToRead:
    file.require(key, "the topics to read")
    table = file.table(key)
    source = read_topics(table)
    table.end()
    return source


def read_topics(table: TomlTable, default_bootstrap: str | None = None) -> TopicsToRead:
    """Reads the keys of topics to read from a table that may have other keys too."""
    bootstrap = read_bootstrap(table, default_bootstrap)
    pattern = table.optional_text("pattern")
    if pattern is not None:
        if "topics" in table:
            raise table.problem(f"{table.name_of('topics')} and pattern exclude each other; choose one", key="pattern")
        topics: tuple[str, ...] = ()
        try:
            re.compile(pattern)
        except re.error as problem:
            reason = f"{table.name_of('pattern')} is not a regular expression: {problem}"
            raise table.problem(reason, key="pattern") from None
    else:
        topics = table.texts("topics")
        check_topics(table, "topics", topics)
    return TopicsToRead(
        bootstrap,
        topics,
        pattern,
        table.choice("start", ("earliest", "latest"), "earliest"),
        table.optional_number("max_records_per_batch"),
        read_options(table),
    )


def read_values(file: TomlTable) -> ValueFormat | None:
    """Returns None without a table [values]: the values stay bytes."""
    if "values" not in file:
        return None
    table = file.table("values")
    kind = table.choice("format", VALUE_FORMATS)
    values = ValueFormat(
        kind,
        _schema(table, kind),
        table.text("message", why="the name of the message in the descriptor") if kind == "protobuf" else None,
        table.number("skip_bytes", 0, at_least=0),
        read_options(table, reserved=False),
        _dead_letters(table),
    )
    table.end()
    return values


def _schema(table: TomlTable, kind: str) -> str:
    if kind == "protobuf":
        return read_location(table, "schema_file", why="a descriptor file, written by protoc --descriptor_set_out")
    if "schema" in table and "schema_file" in table:
        raise table.problem("values has schema and schema_file; choose one", key="schema_file")
    if "schema_file" not in table:
        table.require("schema", "columns as in CREATE TABLE, for example 'id BIGINT, name STRING', or schema_file")
        return table.text("schema")
    return _read_file(table, "schema_file", table.text("schema_file"))


def _dead_letters(table: TomlTable) -> DeadLetters | None:
    if "dead_letters" not in table:
        return None
    letters = table.table("dead_letters")
    if ("topic" in letters) == ("path" in letters):
        raise letters.problem("values.dead_letters needs a topic or a path")
    found = DeadLetters(
        read_topic(letters, "topic") if "topic" in letters else None,
        read_location(letters, "path") if "path" in letters else None,
    )
    letters.end()
    return found


def read_steps(file: TomlTable) -> tuple[PipelineStep, ...]:
    return tuple(_step(table) for table in file.tables("steps"))


def _step(table: TomlTable) -> PipelineStep:
    step: PipelineStep
    if "sql" in table:
        step = SqlStep(table.text("sql"), table.place_of("sql"))
    elif "watermark" in table:
        watermark = table.table("watermark")
        step = Watermark(watermark.text("column", "timestamp"), read_duration(watermark, "delay"))
        watermark.end()
    elif "deduplicate" in table:
        step = Deduplication(table.texts("deduplicate"))
    else:
        raise table.problem("a step has one of: sql, watermark, deduplicate")
    if len(table.keys) > 1:
        raise table.problem("a step has just one of: sql, watermark, deduplicate. Write [[steps]] before each of them")
    return step


def read_tables(file: TomlTable) -> dict[str, TableOnDisk]:
    """Returns the tables that SQL steps may join: [tables.NAME]."""
    tables = file.table("tables")
    return {name: _table_on_disk(tables, name) for name in tables.keys}


def _table_on_disk(tables: TomlTable, name: str) -> TableOnDisk:
    if name == "records" or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise tables.problem(f"a table cannot be named '{name}'; use letters, digits and '_'", key=name)
    table = tables.table(name)
    found = TableOnDisk(
        read_location(table, "path"), table.text("format", "parquet"), read_options(table, reserved=False)
    )
    table.end()
    return found


def read_table(table: TomlTable) -> TableSink:
    kind = table.choice("format", TABLE_FORMATS, "parquet")
    name = table.optional_text("table")
    if name is not None and (kind == "parquet" or "path" in table):
        raise table.problem(f"{table.name_of('table')} is for Delta and Iceberg, in place of a path", key="table")
    path = None if name is not None else read_location(table, "path", why="the directory of the table")
    return TableSink(kind, path, name, read_options(table, reserved=False))


def read_topic_sink(file: TomlTable, *, bootstrap: str | None = None, needs_topic: bool = True) -> TopicSink:
    file.require("sink", "the topic to write")
    table = file.table("sink")
    sink = TopicSink(
        read_bootstrap(table, bootstrap),
        read_topic(table, "topic") if needs_topic or "topic" in table else None,
        table.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE),
        read_options(table),
    )
    table.end()
    return sink
