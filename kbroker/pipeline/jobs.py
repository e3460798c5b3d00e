"""Running parts of a pipeline. A kind returns them from `start`; the command line watches and stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kbroker.pipeline.progress import Progress, progress_of

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["Job", "StreamJob"]


class Job(Protocol):
    """One running query or batch job."""

    @property
    def name(self) -> str: ...

    @property
    def is_active(self) -> bool: ...

    def reports(self) -> list[Progress]:
        """Returns the progress of each batch that ended since the last call."""
        ...

    def failure(self) -> BaseException | None:
        """Returns the reason why the job ended; None if it runs or ended by itself."""
        ...

    def stop(self) -> None:
        """Stops after the running batch where possible. No-op if the job has ended."""
        ...


class StreamJob:
    """A streaming query."""

    def __init__(self, query: StreamingQuery, name: str) -> None:
        self.query = query
        self._name = name
        self._last_batch = -1

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    def reports(self) -> list[Progress]:
        recent: list[Any] = self.query.recentProgress
        # While there is no data, Spark repeats the number of the next batch in its reports.
        found = [report for report in map(progress_of, recent) if report.batch > self._last_batch and report.is_batch]
        self._last_batch = max((report.batch for report in found), default=self._last_batch)
        return found

    def failure(self) -> BaseException | None:
        found: BaseException | None = self.query.exception()
        return found

    def stop(self) -> None:
        self.query.stop()
