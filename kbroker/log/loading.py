"""The first use of a log, from its files to its state, and the last. A part of PartitionLog, whose state it sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import RecoveryNeeded
from kbroker.log.file_cache import FileCache
from kbroker.log.recovery import LoadedLog, load_log
from kbroker.log.rolling import new_jitter

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

__all__ = ["close", "load", "read_files", "take"]


def load(log: PartitionLog) -> None:
    if log._on_unsound is None:
        take(log, read_files(log, may_recover=True))
        return
    try:
        if log._is_unsound:
            raise RecoveryNeeded(f"{log.path} has to be recovered")
        loaded = read_files(log, may_recover=False)
    except RecoveryNeeded:
        log._is_unsound = True
        log._on_unsound()
        raise
    take(log, loaded)


def read_files(log: PartitionLog, *, may_recover: bool) -> LoadedLog:
    """Through files of its own: it may run in a thread, and what is shared with other logs belongs to the loop."""
    return load_log(
        FileCache(log.files.filesystem),
        log.path,
        log.config,
        log_start_offset=log._log_start_offset,
        recovery_point=log.recovery_point,
        cleaner_offset=log.cleaner_offset or 0,
        is_clean=log._is_clean,
        may_recover=may_recover,
    )


def take(log: PartitionLog, loaded: LoadedLog) -> None:
    """What was read becomes the log. On the loop."""
    log.segments = loaded.segments
    log._active = loaded.segments.active
    log._active.roll_jitter_ms = new_jitter(log)
    log._epochs = loaded.epochs
    log._producers = loaded.producers
    log.snapshots = loaded.snapshots
    log._log_start_offset = loaded.log_start_offset
    log._log_end_offset = loaded.log_end_offset
    log.was_shortened = loaded.was_shortened
    log.recovery_point = loaded.log_end_offset if log._is_clean else min(log.recovery_point, loaded.log_end_offset)
    log._is_loaded = True
    log._is_unsound = False
    log.set_high_watermark(log._high_watermark)
    for segment in loaded.segments:
        segment.move_to(log.files)


def close(log: PartitionLog) -> None:
    assert not log._staged, "staged batches were neither committed nor abandoned"
    log._active.become_inactive()
    log.snapshots.take(log._producers, log._log_end_offset)
    log.doomed.unlink()
    log.close_files()
