"""`spark.read.format("kbroker-log")`: the records of segment files, without a broker.

The columns are those of Spark's Kafka source. One task for each segment; `segment_files.py` finds and reads them. The
directory must be at the same path on all executors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kbroker.errors import UserError
from kbroker.pipeline.arrow.decoding import RowFilter
from kbroker.pipeline.segment_files import SegmentSelection, SegmentTask, find_segments, read_segment
from kbroker.pipeline.worker_imports import settle_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SegmentDataSource", "read_segments"]

_COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
_HEADERS: Final = ", headers array<struct<key: string, value: binary>>"
_OPTIONS: Final = (
    "path",
    "topics",
    "topicPattern",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "isolationLevel",
    "includeHeaders",
)


def read_segments(
    spark: SparkSession,
    path: str,
    *,
    topics: str | Sequence[str] = (),
    pattern: str | None = None,
    starting_offset: int | None = None,
    ending_offset: int | None = None,
    starting_timestamp: int | None = None,
    ending_timestamp: int | None = None,
    read_committed: bool = False,
    include_headers: bool = False,
) -> DataFrame:
    """Returns the records of the segment files in a data directory. Timestamps are in ms; the ends are exclusive.

    Raises UserError if the directory or a topic does not exist.
    """
    options = {
        "topics": topics if isinstance(topics, str) else ",".join(topics),
        "topicPattern": pattern,
        "startingOffset": starting_offset,
        "endingOffset": ending_offset,
        "startingTimestamp": starting_timestamp,
        "endingTimestamp": ending_timestamp,
        "isolationLevel": "read_committed" if read_committed else None,
        "includeHeaders": "true" if include_headers else None,
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    find_segments(path, read_selection(given))  # bad input fails here, in one line, and not in a worker of Spark
    spark.dataSource.register(SegmentDataSource)
    return spark.read.format("kbroker-log").options(**given).load(path)


def read_selection(options: Mapping[str, str]) -> SegmentSelection:
    """Reads the options of the data source. Raises UserError if one is unknown or wrong."""
    known = {name.lower(): name for name in _OPTIONS}
    given = {}
    for name, value in options.items():
        if name.lower() not in known:
            raise UserError(f"kbroker-log has no option {name}; it knows: {', '.join(_OPTIONS)}.")
        given[known[name.lower()]] = value
    topics = tuple(topic.strip() for topic in given.get("topics", "").split(",") if topic.strip())
    pattern = given.get("topicPattern")
    if topics and pattern is not None:
        raise UserError("Set topics or topicPattern, not both.")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UserError(f"topicPattern '{pattern}' is not a regular expression: {problem}.") from None
    isolation = given.get("isolationLevel", "read_uncommitted")
    if isolation not in ("read_uncommitted", "read_committed"):
        raise UserError(f"isolationLevel is '{isolation}'; expected read_uncommitted or read_committed.")
    names = ("startingOffset", "endingOffset", "startingTimestamp", "endingTimestamp")
    limits = RowFilter(*(_number(given, name) for name in names))
    return SegmentSelection(topics, pattern, limits, isolation == "read_committed")


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{name} is '{text}'; it must be a whole number, 0 or more.")
    return int(text)


class SegmentDataSource(DataSource):
    """Register it with `spark.dataSource.register(SegmentDataSource)`, or call `read_segments`, which does."""

    @classmethod
    def name(cls) -> str:
        return "kbroker-log"

    def schema(self) -> str:
        settle_worker()
        return _COLUMNS + _HEADERS if self._has_headers else _COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        path = self.options.get("path")
        if path is None:
            raise UserError("Pass the data directory: spark.read.format('kbroker-log').load(DIRECTORY).")
        return SegmentReader(path, read_selection(self.options), has_headers=self._has_headers)

    @property
    def _has_headers(self) -> bool:
        return str(self.options.get("includeHeaders", "false")).lower() == "true"


class SegmentPartition(InputPartition):
    def __init__(self, task: SegmentTask) -> None:
        super().__init__(None)
        self.task = task


class SegmentReader(DataSourceReader):
    def __init__(self, path: str, selection: SegmentSelection, *, has_headers: bool) -> None:
        self._path = path
        self._selection = selection
        self._has_headers = has_headers

    def partitions(self) -> Sequence[InputPartition]:
        tasks = find_segments(self._path, self._selection)
        settle_worker()
        return [SegmentPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SegmentPartition)
        yield from read_segment(partition.task, has_headers=self._has_headers)
        settle_worker()
