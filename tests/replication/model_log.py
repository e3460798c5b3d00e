"""A log as a list, as a model for the rules of replication: a record is a leader epoch and a value."""

from __future__ import annotations

from kbroker.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEntry


class ModelLog:
    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self.high_watermark = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def latest_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else UNDEFINED_EPOCH

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """Finds the offset by looking at all records."""
        if not self.entries or epoch > self.latest_epoch:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        lower = [number for number, (entry_epoch, _) in enumerate(self.entries) if entry_epoch <= epoch]
        if not lower:
            return EpochEntry(epoch, 0)
        return EpochEntry(self.entries[lower[-1]][0], lower[-1] + 1)

    def truncate_to(self, offset: int) -> None:
        del self.entries[offset:]
        self.high_watermark = min(self.high_watermark, offset)
