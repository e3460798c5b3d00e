"""Owners of directories: a checkpoint belongs to one pipeline, a table of Parquet files to one checkpoint.

    CHECKPOINT/kbroker-pipeline.json   name, kind, id, destination, cluster id and columns of the pipeline
    CHECKPOINT/lock                    locked by the process that runs the pipeline
    TABLE/_kbroker/owner.json          id and path of the checkpoint that writes the table

Knows no Spark. A checkpoint at a URI (hdfs://, s3a://) has no such files and is not checked.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kbroker.errors import UserError
from kbroker.pipeline.durable_files import lock_file, write_json

__all__ = ["OWNER_FILE", "PipelineCheckpoint", "claim_checkpoint", "claim_table"]

OWNER_FILE: Final = "kbroker-pipeline.json"
LOCK_FILE: Final = "lock"
TABLE_MARK: Final = "_kbroker"

# Directory -> descriptor of its lock. A process keeps its locks: Spark itself runs one query for each checkpoint.
_LOCKS: Final[dict[str, int]] = {}


class PipelineCheckpoint:
    """Directory with the progress of one pipeline. Each query has a directory of its own in it."""

    def __init__(self, location: str, owner: dict[str, Any]) -> None:
        self.location = location
        self.owner = owner

    @property
    def is_local(self) -> bool:
        return is_local(self.location)

    def directory_of(self, query: str) -> str:
        return f"{self.location.rstrip('/')}/{query}"

    def check_cluster(self, cluster_id: str | None) -> None:
        """Raises UserError if the offsets belong to another cluster. Remembers the first cluster."""
        known = self.owner.get("cluster")
        if known is None:
            self._remember(cluster=cluster_id)
        elif cluster_id not in (None, known):
            raise UserError(
                f"Checkpoint {self.location} holds offsets of cluster {known}, but source.bootstrap leads to cluster "
                f"{cluster_id}. Correct source.bootstrap, or choose a new checkpoint"
            )

    def check_columns(self, columns: Mapping[str, str], *, table: str) -> None:
        """Raises UserError if a column has changed its type. Remembers new columns."""
        known: dict[str, str] = self.owner.get("columns", {})
        for name, kind in columns.items():
            if known.get(name, kind) != kind:
                raise UserError(
                    f"Column {name} is {known[name]} in {table} and would become {kind}. Keep its type, give the new "
                    "values another name, or archive to a new table with a new checkpoint"
                )
        if known.keys() != known.keys() | columns.keys():
            self._remember(columns={**known, **columns})

    def _remember(self, **values: Any) -> None:
        self.owner.update(values)
        if self.is_local:
            write_json(Path(self.location) / OWNER_FILE, self.owner)


def is_local(location: str) -> bool:
    return "://" not in location


def claim_checkpoint(location: str, *, name: str, kind: str, destination: str) -> PipelineCheckpoint:
    """Locks a checkpoint. Raises UserError if it belongs to another pipeline or if a process runs the pipeline."""
    owner = {"name": name, "kind": kind, "destination": destination, "id": str(uuid.uuid4())}
    if not is_local(location):
        return PipelineCheckpoint(location, owner)
    directory = Path(location)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _lock(directory)
        found = _read_owner(directory)
        if found is None:
            _check_unused(directory)
            write_json(directory / OWNER_FILE, owner)
            return PipelineCheckpoint(location, owner)
    except OSError as problem:
        raise UserError(f"Checkpoint {location} cannot be used: {problem.strerror}") from None
    for key, wanted in (("name", name), ("kind", kind), ("destination", destination)):
        if found.get(key) != wanted:
            raise UserError(
                f"Checkpoint {location} belongs to another pipeline: its {key} is {found.get(key)}, not {wanted}. "
                "Choose a new checkpoint"
            )
    return PipelineCheckpoint(location, found)


def _lock(directory: Path) -> None:
    key = os.path.realpath(directory)
    if key in _LOCKS:
        return
    try:
        _LOCKS[key] = lock_file(directory / LOCK_FILE)
    except BlockingIOError:
        raise UserError(
            f"Another process runs the pipeline of checkpoint {directory}. Stop it first, or choose a new checkpoint"
        ) from None


def _read_owner(directory: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((directory / OWNER_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{directory / OWNER_FILE} is damaged. Restore it, or choose a new checkpoint") from None
    return found


def _check_unused(directory: Path) -> None:
    others = sorted(entry.name for entry in directory.iterdir() if entry.name != LOCK_FILE)
    if others:
        raise UserError(
            f"Checkpoint {directory} is not empty ({others[0]}) and does not belong to a pipeline of kbroker. "
            "Choose a new directory"
        )


def claim_table(path: str, checkpoint: PipelineCheckpoint) -> None:
    """Marks a directory as the table of a checkpoint. Raises UserError if it holds other files or has another owner.

    Spark skips batches whose numbers its table has seen. With a new checkpoint it would lose them without a word.
    """
    if not is_local(path):
        return
    directory, mark = Path(path), Path(path) / TABLE_MARK / "owner.json"
    try:
        if mark.exists():
            owner = json.loads(mark.read_text(encoding="utf-8"))
            if owner["id"] != checkpoint.owner["id"]:
                raise UserError(
                    f"Table {path} belongs to pipeline {owner['name']} with checkpoint {owner['checkpoint']}. "
                    "Use this checkpoint, or choose a new table"
                )
            return
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"Table {path} is not empty, and no pipeline of kbroker wrote it. Choose a new directory")
        mark.parent.mkdir(parents=True, exist_ok=True)
        owner = {"id": checkpoint.owner["id"], "name": checkpoint.owner["name"], "checkpoint": checkpoint.location}
        write_json(mark, owner)
    except OSError as problem:
        raise UserError(f"Table {path} cannot be written: {problem.strerror}") from None
