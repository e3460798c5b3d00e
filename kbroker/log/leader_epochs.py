"""`leader-epoch-checkpoint`: the start offset of each leader epoch. Version 0, count, then "epoch offset" lines.

Both columns grow. Batches have their epoch too, so a lost file can be rebuilt from the log: it is never fsynced.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from kbroker.errors import StorageFailure
from kbroker.log.files.checkpoint import decode_lines, encode_lines
from kbroker.log.files.filesystem import FileSystem

__all__ = ["UNDEFINED_EPOCH", "UNDEFINED_OFFSET", "EpochEntry", "LeaderEpochs"]

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
    __slots__ = ("_filesystem", "_path", "entries", "is_readable", "latest")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self.is_readable = True  # False: the file is damaged and has to be rebuilt from the log
        self.entries: list[EpochEntry] = self._read()
        self.latest = self.entries[-1].epoch if self.entries else UNDEFINED_EPOCH

    def _read(self) -> list[EpochEntry]:
        try:
            lines = decode_lines(self._filesystem.read(self._path))
            entries = [EpochEntry(int(epoch), int(offset)) for epoch, offset in lines]
        except FileNotFoundError:
            return []
        except ValueError:
            self.is_readable = False
            return []
        return entries

    def assign(self, epoch: int, *, start_offset: int) -> None:
        """Adds an epoch and writes the file. Removes entries with a later epoch or start: they were never committed."""
        before, latest = list(self.entries), self.latest
        if self.note(epoch, start_offset=start_offset):
            try:
                self.write()
            except StorageFailure:
                self.entries, self.latest = before, latest
                raise

    def note(self, epoch: int, *, start_offset: int) -> bool:
        """Like `assign`, in memory only. Returns whether anything changed."""
        entries = self.entries
        if epoch < 0 or (entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset):
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.latest = epoch
        return True

    def end_offset_for(self, epoch: int, *, log_end_offset: int) -> EpochEntry:
        """Returns the largest known epoch up to `epoch`, and its end offset, as in OffsetForLeaderEpoch."""
        entries = self.entries
        if epoch == UNDEFINED_EPOCH:
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest:
            return EpochEntry(epoch, log_end_offset)
        higher = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if higher == len(entries):
            return EpochEntry(UNDEFINED_EPOCH, UNDEFINED_OFFSET)  # above all known epochs
        if higher == 0:
            return EpochEntry(epoch, entries[0].start_offset)  # below all known epochs
        return EpochEntry(entries[higher - 1].epoch, entries[higher].start_offset)

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch in which an offset was written; -1 if it is not known."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[found].epoch if found >= 0 else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        self._keep([entry for entry in self.entries if entry.start_offset < end_offset])

    def truncate_from_start(self, start_offset: int) -> None:
        """Drops epochs before the start offset. The epoch that covers it begins there."""
        before = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if before:
            kept = [EpochEntry(before[-1].epoch, start_offset)]
            self._keep(kept + self.entries[len(before) :])

    def clear(self) -> None:
        self._keep([])

    def _keep(self, entries: list[EpochEntry]) -> None:
        if entries != self.entries:
            self.entries = entries
            self.latest = entries[-1].epoch if entries else UNDEFINED_EPOCH
            self.write()

    def write(self) -> None:
        self._filesystem.replace(self._path, encode_lines(self.entries), sync=False)
        self.is_readable = True
