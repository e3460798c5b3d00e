"""Status of a pipeline from the files of its checkpoint, without Spark: offsets, last batch, rate.

CHECKPOINT/QUERY/offsets/N     version, metadata with batchTimestampMs, one line for each source: written before batch N
CHECKPOINT/QUERY/commits/N     written after batch N
CHECKPOINT/QUERY/sources/S/0   a zero byte, version, the offsets at which the first batch began to read source S
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.errors import UserError
from kbroker.pipeline.ownership import OWNER_FILE
from kbroker.pipeline.progress import offsets_of

__all__ = ["QueryStatus", "lag_by_topic", "read_status"]

TopicOffsets = Mapping[str, Mapping[int, int]]

BATCHES_FOR_RATE: Final = 10


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """State of one query, or of one source of an audit."""

    query: str
    """Its name; for an audit the name of the hop."""
    batch: int | None
    """Last batch that has ended; None if none has."""
    batch_time_ms: int | None
    """Time when that batch began."""
    is_batch_open: bool
    """Whether a later batch has begun. It will be repeated after a restart."""
    offsets: TopicOffsets = field(default_factory=dict)
    """Next offset to read."""
    rows_per_s: float | None = None
    """Average over the last batches, while they ran; None if it is unknown. A batch that was repeated after a restart
    counts from its first begin.
    """
    records: int | None = None
    """Records that a replay has written; None for other kinds."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Batch(NamedTuple):
    time_ms: int
    duration_ms: int
    sources: list[TopicOffsets]
    """Offsets of each source, {} for a table, in the order of the query."""


def read_status(checkpoint: str, *, hops: Sequence[str] = ()) -> list[QueryStatus]:
    """Returns the status of each query. Raises UserError if the directory is not a checkpoint of a pipeline.

    `hops` are the sources of an audit, in their order: each gets a status of its own. Two hops can have topics of the
    same name in two clusters.
    """
    if "://" in checkpoint:
        raise UserError(f"The status of {checkpoint} cannot be read: only local directories are supported")
    directory = Path(checkpoint)
    if not (directory / OWNER_FILE).is_file():
        raise UserError(f"{checkpoint} is not the checkpoint of a pipeline, or the pipeline has never run")
    if (directory / "plan.json").is_file():
        return [_replay_status(directory)]
    queries = sorted(path for path in directory.iterdir() if (path / "offsets").is_dir())
    return [status for path in queries for status in _statuses_of(path, hops)]


def _replay_status(directory: Path) -> QueryStatus:
    slices = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    try:
        done: int = json.loads((directory / "progress.json").read_text(encoding="utf-8"))["slices"]
    except FileNotFoundError:
        done = 0
    records = sum(part[1] for part in slices[:done])
    return QueryStatus("replay", done - 1 if done else None, None, False, records=records)


def _statuses_of(directory: Path, hops: Sequence[str]) -> list[QueryStatus]:
    begun, ended = _batches(directory / "offsets"), _batches(directory / "commits")
    # A batch has ended if its commit is there. Spark deletes old files of both directories at the same time.
    done = [number for number in begun if number in set(ended)]
    is_open = bool(begun) and (not done or begun[-1] > done[-1])
    if not done:
        return [QueryStatus(directory.name, None, None, is_open)]
    recent = [_read_batch(directory, number) for number in done[-BATCHES_FOR_RATE - 1 :]]
    if done[0] == 0 and len(done) <= BATCHES_FOR_RATE:
        first = [_first_offsets(directory, index) for index in range(len(recent[0].sources))]
        if any(first):
            recent.insert(0, _Batch(0, 0, first))
    seconds = sum(batch.duration_ms for batch in recent[1:]) / 1000

    def status(name: str, offsets: list[TopicOffsets]) -> QueryStatus:
        rate = sum(map(_rows_between, offsets, offsets[1:])) / seconds if seconds > 0 and offsets[-1] else None
        return QueryStatus(name, done[-1], recent[-1].time_ms, is_open, offsets[-1], rate)

    if not hops:
        return [status(directory.name, [_merged(batch.sources) for batch in recent])]
    by_source = zip(*(batch.sources for batch in recent), strict=False)
    return [status(hop, list(offsets)) for hop, offsets in zip(hops, by_source, strict=False)]


def _batches(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _read_batch(directory: Path, number: int) -> _Batch:
    path = directory / "offsets" / str(number)
    try:
        _version, metadata, *sources = path.read_text(encoding="utf-8").splitlines()
        began_ms = json.loads(metadata)["batchTimestampMs"]
        ended_ms = (directory / "commits" / str(number)).stat().st_mtime_ns // 1_000_000
    except (OSError, ValueError, KeyError) as problem:
        raise UserError(f"{path} is damaged or being written: {problem}. Try again") from None
    return _Batch(began_ms, max(ended_ms - began_ms, 0), [offsets_of(source) for source in sources])


def _first_offsets(directory: Path, source: int) -> TopicOffsets:
    """Returns the offsets at which the first batch began to read a source; {} if they are unknown."""
    try:
        lines = (directory / "sources" / str(source) / "0").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return offsets_of(lines[-1]) if lines else {}


def _merged(sources: list[TopicOffsets]) -> TopicOffsets:
    offsets: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in source.items():
            offsets.setdefault(topic, {}).update(partitions)
    return offsets


def _rows_between(start: TopicOffsets, end: TopicOffsets) -> int:
    """Returns how many records a batch has read. A partition whose start is unknown counts as not read."""
    return sum(
        offset - start.get(topic, {}).get(index, offset)
        for topic, partitions in end.items()
        for index, offset in partitions.items()
    )


def lag_by_topic(offsets: TopicOffsets, latest: TopicOffsets) -> dict[str, int]:
    """Returns topic -> records that the pipeline has not read yet."""
    return {
        topic: sum(max(0, end - offsets.get(topic, {}).get(index, 0)) for index, end in partitions.items())
        for topic, partitions in latest.items()
    }
