"""Copy of a partition's log in another data directory, which grows until it replaces the log.

Appended to as a follower's log, with batches read from the log in order. It has its own cache of open files: a thread
may use it, or the loop, but not both at the same time.
"""

from __future__ import annotations

from kbroker.log.files.checkpoint import CheckpointedOffsets
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.producers.producer_replay import ProducerSnapshots
from kbroker.log.recovery import LEADER_EPOCH_CHECKPOINT, load_log
from kbroker.protocol.record_batch import iter_headers

__all__ = ["FutureLog"]


class FutureLog:
    def __init__(self, filesystem: FileSystem, path: str, config: LogConfig) -> None:
        self.path = path
        self._filesystem = filesystem
        self._config = config
        self._log: OpenLog | None = None

    @property
    def end_offset(self) -> int | None:
        """Returns the log end offset of the copy; None while it is empty."""
        return None if self._log is None else self._log.log_end_offset

    @property
    def recovery_point(self) -> int:
        return 0 if self._log is None else self._log.recovery_point

    @property
    def size_bytes(self) -> int:
        return 0 if self._log is None else self._log.size_bytes

    def begin(self, offset: int) -> None:
        """Empties the copy. The next batch has this offset or a later one."""
        if self._log is None:
            offsets = CheckpointedOffsets(log_start_offset=offset)
            self._log = load_log(FileCache(self._filesystem), self.path, self._config, offsets)
        else:
            self._log.truncate_fully_and_start_at(offset)
        self._log.recovery_point = offset

    def append(self, records: bytes) -> None:
        """Appends batches of the log. Blocks. Raises InvalidBatch if they are damaged."""
        if self._log is None:
            first = next(iter_headers(records), None)
            if first is None:
                return
            self.begin(first[1].base_offset)
        assert self._log is not None
        self._log.append_as_follower(records)

    def flush(self, now_ms: int) -> None:
        """Fsyncs the copy. Blocks."""
        if self._log is not None:
            self._log.flush(now_ms)

    def finish(self, source: OpenLog, now_ms: int) -> None:
        """Writes everything that is not in the records, and closes the files. The copy can then be opened as the log.

        The log end offset of `source` may be beyond its last batch if the cleaner removed batches.
        """
        assert self._log is not None
        end_offset = source.log_end_offset
        if self._log.log_end_offset < end_offset:
            self._log.roll(now_ms, base_offset=end_offset)
        self._log.close()
        # Only the source knows the producers and epochs whose batches retention has deleted.
        snapshots = ProducerSnapshots(self._filesystem, self.path, [])
        snapshots.write(source.producers, end_offset)
        try:
            epochs = self._filesystem.read(f"{source.path}/{LEADER_EPOCH_CHECKPOINT}")
        except FileNotFoundError:
            return
        self._filesystem.replace(f"{self.path}/{LEADER_EPOCH_CHECKPOINT}", epochs)

    def close(self) -> None:
        """Closes the files of a copy that is given up."""
        if self._log is not None:
            self._log.close_files()
            self._log = None
