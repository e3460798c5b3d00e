"""The driver's decision to commit a batch, in one file beside the checkpoint of the query.

The file is replaced atomically and fsynced before the first transaction is ended, so after a crash it says whether the
batch is committed. A lock keeps a second driver out. JSON:

    {"version": 1, "sink": name, "batch": number, "state": "decided" or "finished",
     "transactions": [{"task", "id", "producer", "epoch", "records"}, ...]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.client.transactional_producing import ProducerTransaction
from kbroker.errors import UserError
from kbroker.pipeline.durable_files import lock_file, sync_directory, write_json

__all__ = ["DECIDED", "FINISHED", "BatchDecision", "DecisionFile", "TaskResult"]

DECIDED: Final = "decided"
FINISHED: Final = "finished"
_VERSION: Final = 1
_NAME: Final = "decision.json"
_LOCK: Final = ".lock"


class TaskResult(NamedTuple):
    """Result of the attempt of a task that Spark has accepted. Without records there is no transaction."""

    task: int
    attempt: int
    record_count: int
    transaction: ProducerTransaction | None


class BatchDecision(NamedTuple):
    batch_id: int
    results: tuple[TaskResult, ...]
    """Results of all tasks that wrote records."""
    state: str = DECIDED


class DecisionFile:
    """`lock` before use; the lock is held until `close`, or the end of the process."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self._directory = Path(_local_path(os.fspath(directory)))
        self._name = name
        self._lock: int | None = None
        self.path = self._directory / _NAME

    def lock(self) -> None:
        """Raises UserError if another process has the lock."""
        if self._lock is not None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(self._directory / _LOCK)
        except BlockingIOError:
            raise UserError(
                f"Another run of sink '{self._name}' uses {self._directory}: stop it first, or give this run a "
                "directory and a name of its own."
            ) from None
        except OSError as problem:
            raise UserError(f"Cannot write to the sink's directory {self._directory}: {problem.strerror}.") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> BatchDecision | None:
        """Returns the last decision. Raises UserError if the file is damaged or belongs to another sink."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"Cannot read {self.path}: {problem}") from None
        try:
            return self._decode(json.loads(text))
        except (ValueError, KeyError, TypeError) as problem:
            raise UserError(f"{self.path} is not a decision of the exactly-once sink: {problem!r}.") from None

    def _decode(self, content: Any) -> BatchDecision:
        if content["version"] != _VERSION:
            raise UserError(
                f"{self.path} has version {content['version']}: a newer kbroker wrote it. Use that version."
            )
        if content["sink"] != self._name:
            raise UserError(
                f"{self.path} belongs to sink '{content['sink']}', not '{self._name}': give each sink a directory of "
                "its own."
            )
        results = [
            TaskResult(
                int(found["task"]),
                0,
                int(found["records"]),
                ProducerTransaction(str(found["id"]), int(found["producer"]), int(found["epoch"])),
            )
            for found in content["transactions"]
        ]
        return BatchDecision(int(content["batch"]), tuple(results), str(content["state"]))

    def record(self, decision: BatchDecision, *, on_written: Callable[[], None] = lambda: None) -> None:
        """Replaces the file. After the return it survives a crash of the machine.

        `on_written` is called before the new file takes its name.
        """
        content = {
            "version": _VERSION,
            "sink": self._name,
            "batch": decision.batch_id,
            "state": decision.state,
            "transactions": [
                {
                    "task": result.task,
                    "id": result.transaction.transactional_id,
                    "producer": result.transaction.producer_id,
                    "epoch": result.transaction.producer_epoch,
                    "records": result.record_count,
                }
                for result in decision.results
                if result.transaction is not None
            ],
        }
        try:
            write_json(self.path, content, on_written=on_written)
        except OSError as problem:
            raise UserError(f"Cannot record the decision in {self.path}: {problem.strerror}.") from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        sync_directory(self._directory)


def _local_path(location: str) -> str:
    if "://" in location and not location.startswith("file://"):
        raise UserError(
            f"The exactly-once sink keeps its decisions in a directory that the driver can fsync, not in {location}: "
            "use a local or mounted directory."
        )
    return location.removeprefix("file://").removeprefix("file:")
