"""How far a log has been fsynced, when it is time for more, and the one job that may be under way."""

from __future__ import annotations

from kbroker.log.filesystem import FileSystem
from kbroker.log.flush_job import FlushJob
from kbroker.log.log_config import LogConfig
from kbroker.log.segment_list import SegmentList

__all__ = ["FlushState"]


class FlushState:
    __slots__ = ("_job", "_last_flush_ms", "recovery_point", "truncations")

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.truncations = 0  # a job that began before one must not move the recovery point
        self._job: FlushJob | None = None
        self._last_flush_ms = -1

    def is_due(self, config: LogConfig, now_ms: int, *, log_end_offset: int, active_base_offset: int) -> bool:
        unflushed = log_end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        if self._last_flush_ms < 0:
            self._last_flush_ms = now_ms
        return (
            unflushed >= config.flush_messages
            or now_ms - self._last_flush_ms >= config.flush_ms
            or self.recovery_point < active_base_offset
        )

    def begin(
        self, filesystem: FileSystem, directory: str, segments: SegmentList, up_to_offset: int
    ) -> FlushJob | None:
        if self._job is not None or self.recovery_point >= up_to_offset:
            return None
        logs, indexes, has_new_file = [], [], False
        for segment in segments.starting_with(self.recovery_point):
            if segment.base_offset >= up_to_offset:
                break
            touched = segment.write_indexes()
            indexes += touched if segment.is_active else segment.index_paths
            has_new_file |= segment.is_new
            segment.is_new = False
            logs.append(segment.file)
        self._job = FlushJob(
            filesystem,
            logs,
            indexes,
            directory=directory if has_new_file else None,
            up_to_offset=up_to_offset,
            truncations=self.truncations,
        )
        return self._job

    def complete(self, job: FlushJob, now_ms: int) -> None:
        assert job is self._job
        self._job = None
        job.release()
        if job.is_done and job.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, job.up_to_offset)
            self._last_flush_ms = now_ms
