"""Log of a partition that is read at its first use: its path, its checkpointed offsets, whether it is sound.

    closed -- open() --> open                    a clean log: reads the tail of the active segment
    closed -- open() --> RecoveryNeeded          an unsound log; recover(), or scan() and adopt(), open it
    open   -- close(), close_files() --> closed

All work on records is in OpenLog. Never decides when to recover.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.errors import RecoveryNeeded
from kbroker.log.files.checkpoint import NO_OFFSETS, CheckpointedOffsets
from kbroker.log.files.file_cache import FileCache
from kbroker.log.log_config import UNLIMITED, LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.recovery import load_log
from kbroker.log.roll_rules import no_jitter

__all__ = ["PartitionLog"]


class PartitionLog:
    __slots__ = (
        "_has_committed_all",
        "_is_clean",
        "_is_unsound",
        "_offsets",
        "_on_unsound",
        "_random_below",
        "config",
        "files",
        "opened",
        "path",
    )

    def __init__(
        self,
        files: FileCache,
        path: str,
        config: LogConfig,
        offsets: CheckpointedOffsets = NO_OFFSETS,
        *,
        is_clean: bool = True,
        random_below: Callable[[int], int] = no_jitter,
        on_unsound: Callable[[], object] | None = None,
    ) -> None:
        """Creates a closed log. Unless `is_clean`, it needs recovery.

        Without `on_unsound`, opening recovers. With it, opening a log that needs recovery or turns out to be damaged
        calls `on_unsound` and raises RecoveryNeeded, until the log was recovered.
        """
        self.files = files
        self.path = path
        self.config = config
        self.opened: OpenLog | None = None
        self._offsets = offsets
        self._has_committed_all = False
        self._is_clean = is_clean
        self._is_unsound = not is_clean
        self._random_below = random_below
        self._on_unsound = on_unsound

    def __repr__(self) -> str:
        return f"<PartitionLog {self.path}>"

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        if self.opened is not None:
            self.opened.update_config(config)

    # Opening and closing

    @property
    def needs_recovery(self) -> bool:
        """Whether the log is closed and unsound: after a crash, or because opening it found damage.

        Without other replicas, the caller has to get a new leader epoch before the log serves: a log that lost whole
        batches looks like a log that lost none.
        """
        return self._is_unsound and self.opened is None

    def open(self) -> OpenLog:
        """Returns the open log; reads the tail of the active segment if it is closed.

        Raises RecoveryNeeded if the log is unsound and was not recovered, see `__init__`.
        """
        opened = self.opened
        if opened is not None:
            return opened
        if self._on_unsound is None:
            return self.recover()
        try:
            if self._is_unsound:
                raise RecoveryNeeded(f"{self.path} needs recovery")
            opened = self._load(may_recover=False)
        except RecoveryNeeded:
            self._is_unsound = True
            self._on_unsound()
            raise
        return self.adopt(opened)

    def recover(self) -> OpenLog:
        """Opens the log in any state and truncates it to its valid batches. May take minutes after a crash."""
        return self.opened if self.opened is not None else self.adopt(self.scan())

    def scan(self) -> OpenLog:
        """Like `recover`, for a thread: changes only files. The loop then calls `adopt`, or closes the result."""
        return self._load(may_recover=True)

    def _load(self, *, may_recover: bool) -> OpenLog:
        # With its own cache: it may run in a thread, and the cache shared with other logs belongs to the loop.
        return load_log(
            FileCache(self.files.filesystem),
            self.path,
            self.config,
            self._offsets,
            is_clean=self._is_clean,
            may_recover=may_recover,
            random_below=self._random_below,
        )

    def adopt(self, opened: OpenLog) -> OpenLog:
        """Makes the result of `scan` the open log. On the loop: config and high watermark may have changed since."""
        try:
            opened.set_high_watermark(UNLIMITED if self._has_committed_all else self._offsets.high_watermark)
        except BaseException:
            opened.close_files()
            raise
        opened.update_config(self.config)
        opened.move_to(self.files)
        self.opened = opened
        self._is_unsound = False
        return opened

    def close(self) -> None:
        """Closes an open log as `OpenLog.close` does. The caller fsyncs."""
        if self.opened is not None:
            self.opened.close()
            self._forget_opened(self.opened)

    def close_files(self) -> None:
        """Closes the files and writes nothing, as a crash would."""
        if self.opened is not None:
            self.opened.close_files()
            self._forget_opened(self.opened)

    def _forget_opened(self, opened: OpenLog) -> None:
        self._offsets = CheckpointedOffsets(
            opened.log_start_offset, opened.recovery_point, opened.high_watermark, opened.cleaner_offset
        )
        self._has_committed_all = False
        self.opened = None

    def has_pins(self) -> bool:
        return self.opened is not None and self.opened.has_pins()

    # Offsets and counters, without reading files

    @property
    def known_offsets(self) -> tuple[int, int]:
        """Returns log start and end offset. A log that is closed ends at its checkpointed high watermark."""
        opened = self.opened
        if opened is not None:
            return opened.log_start_offset, opened.log_end_offset
        return self._offsets.log_start_offset, self._offsets.high_watermark

    @property
    def recovery_point(self) -> int:
        return self._offsets.recovery_point if self.opened is None else self.opened.recovery_point

    @recovery_point.setter
    def recovery_point(self, offset: int) -> None:
        if self.opened is None:
            self._offsets = self._offsets._replace(recovery_point=offset)
        else:
            self.opened.recovery_point = offset

    @property
    def cleaner_offset(self) -> int | None:
        return self._offsets.cleaner_offset if self.opened is None else self.opened.cleaner_offset

    @property
    def appended_bytes(self) -> int:
        return 0 if self.opened is None else self.opened.appended_bytes

    @property
    def unparsable_batches(self) -> int:
        return 0 if self.opened is None else self.opened.unparsable_batches

    def commit_all(self) -> None:
        """Moves the high watermark to the log end offset, now or when the log is opened: its only replica leads."""
        if self.opened is not None:
            self.opened.set_high_watermark(self.opened.log_end_offset)
        else:
            self._has_committed_all = True
