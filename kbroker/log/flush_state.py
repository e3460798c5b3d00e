"""Flushes of one log: when the next is due, and the job that is running, if any. Never knows the recovery point."""

from __future__ import annotations

from kbroker.log.files.filesystem import FileSystem
from kbroker.log.files.flush_job import FlushJob
from kbroker.log.log_config import LogConfig
from kbroker.log.segments.segment_list import SegmentList

__all__ = ["FlushState"]


class FlushState:
    __slots__ = ("_job", "_last_flush_ms")

    def __init__(self) -> None:
        self._job: FlushJob | None = None
        self._last_flush_ms = -1

    def is_due(
        self, config: LogConfig, now_ms: int, *, recovery_point: int, log_end_offset: int, active_base_offset: int
    ) -> bool:
        """Whether flush.messages, flush.ms or a roll requires a flush."""
        unflushed = log_end_offset - recovery_point
        if unflushed <= 0:
            return False
        if self._last_flush_ms < 0:
            self._last_flush_ms = now_ms
        return (
            unflushed >= config.flush_messages
            or now_ms - self._last_flush_ms >= config.flush_ms
            # After a roll: a crash then costs the recovery of one segment, and the cleaner may have the closed one.
            or recovery_point < active_base_offset
        )

    def begin(
        self,
        filesystem: FileSystem,
        directory: str,
        segments: SegmentList,
        *,
        recovery_point: int,
        up_to_offset: int,
        truncations: int,
    ) -> FlushJob | None:
        """Writes the indexes from the recovery point on and returns a job that fsyncs them and their segments.

        None: everything is flushed, or a job is running.
        """
        if self._job is not None or recovery_point >= up_to_offset:
            return None
        logs, indexes, has_new_file = [], [], False
        for segment in segments.starting_with(recovery_point):
            if segment.base_offset >= up_to_offset:
                break
            written = segment.write_indexes()
            indexes += written if segment.is_active else segment.index_files.paths
            has_new_file |= segment.is_new
            segment.is_new = False  # also if the job fails: a failed fsync is not repeated, its directory goes offline
            logs.append(segment.file)
        self._job = FlushJob(
            filesystem,
            logs,
            indexes,
            directory=directory if has_new_file else None,
            up_to_offset=up_to_offset,
            truncations=truncations,
        )
        return self._job

    def abandon(self) -> None:
        """Releases a job that `complete` was not called for, because the event loop has ended."""
        if self._job is not None:
            self._job.release()
            self._job = None

    def complete(self, job: FlushJob, *, now_ms: int, truncations: int) -> bool:
        """Ends the running job. Returns whether it succeeded and the log was not truncated while it ran."""
        assert job is self._job
        self._job = None
        job.release()
        # After a truncation other records may be at the offsets of the job, and they are not fsynced.
        if not job.is_done or job.truncations != truncations:
            return False
        self._last_flush_ms = now_ms
        return True
