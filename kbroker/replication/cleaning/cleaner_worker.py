"""One of the log cleaner's workers: runs a round of compaction in a thread, or in a process if the round is large.

In a process, the event loop never waits for the interpreter that compacts. A process takes 0.1 s to start and 20 MB:
small rounds, and those on a simulated file system, run in a thread that pauses often.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from kbroker.clock import Clock
from kbroker.log.cleaning.cleaned_segment import CleanedFiles
from kbroker.log.cleaning.compaction import Compaction, CompactionPlan, SourceSegment
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.replication.cleaning.cleaner_pace import CleanerPace, IoThrottle
from kbroker.replication.cleaning.cleaner_process import Figures, receive, send
from kbroker.thread_pace import ThreadStopped

__all__ = ["CleanerWorker", "CompactionRound", "ProcessLost"]

logger = logging.getLogger(__name__)

MIN_PROCESS_BYTES: Final = 8 << 20
IDLE_SECONDS: Final = 60.0
"""Time after which a process without work ends: a busy topic is due again after a few seconds."""
_PROGRAM: Final = "from kbroker.replication.cleaning.cleaner_process import main; main()"


class ProcessLost(Exception):
    """The process of a worker has ended, for example because the system had no memory for it."""


class CompactionRound(Protocol):
    """Round of compaction. The methods block: call them in a thread."""

    @property
    def written_bytes(self) -> int: ...
    @property
    def map_use(self) -> float: ...
    def build_map(self) -> int: ...
    def groups(self) -> list[list[SourceSegment]]: ...
    def write_cleaned(self, group: Sequence[SourceSegment]) -> CleanedFiles: ...


class CleanerWorker:
    """Used by one task. `stop` and `end_process` are called on the event loop."""

    def __init__(self, clock: Clock, throttle: IoThrottle, *, min_process_bytes: int = MIN_PROCESS_BYTES) -> None:
        self._clock = clock
        self._pace = CleanerPace(clock, throttle)
        self._min_process_bytes = min_process_bytes
        self._process: _CleanerProcess | None = None
        self._last_used = 0.0
        self._is_stopped = False

    def begin(self, plan: CompactionPlan) -> CompactionRound:
        """Prepares a round. Blocks: starts the process if the round is large and there is none."""
        size = sum(source.size for source in plan.sources)
        if size < self._min_process_bytes or not isinstance(plan.filesystem, OsFileSystem):
            return Compaction(plan, self._pace)
        if self._process is None:
            try:
                self._process = _CleanerProcess()
            except OSError as error:
                logger.warning("Could not start a process for the log cleaner; using a thread: %s", error)
                return Compaction(plan, self._pace)
            if self._is_stopped:
                raise self.lost()
        self._last_used = self._clock.monotonic()
        return _RemoteRound(self, self._process, self._pace, plan)

    def stop(self) -> None:
        """Makes the thread that runs a round raise ThreadStopped soon. Does not wait for it."""
        self._is_stopped = True
        self._pace.stop()
        if self._process is not None:
            self._process.kill()

    def end_idle_process(self) -> None:
        """Ends the process if it had no work for a while. Blocks for a moment."""
        if self._clock.monotonic() - self._last_used >= IDLE_SECONDS:
            self.end_process()

    def end_process(self) -> None:
        """Ends the process, if there is one. Blocks for a moment."""
        process, self._process = self._process, None
        if process is not None:
            process.reap()

    def lost(self) -> Exception:
        """Returns the exception for a process that has ended."""
        self.end_process()
        return ThreadStopped() if self._is_stopped else ProcessLost("The process of the log cleaner has ended")


class _CleanerProcess:
    def __init__(self) -> None:
        # The same code as here: the compiled modules may be in a directory that only this process knows.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            close_fds=False,  # no descriptor of Python is inherited, and there may be very many
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin, self.stdout = self._process.stdin, self._process.stdout

    def kill(self) -> None:
        """Kills the process. A thread that reads its answers then finds their end, and calls `reap`."""
        self._process.kill()

    def reap(self) -> None:
        self._process.kill()
        self._process.wait()
        self.stdout.close()
        with suppress(OSError):  # bytes that the process has not read
            self.stdin.close()


class _RemoteRound:
    """Round in a process. Each method waits for its end and limits the rate of the process until then."""

    def __init__(
        self, worker: CleanerWorker, process: _CleanerProcess, pace: CleanerPace, plan: CompactionPlan
    ) -> None:
        self._worker = worker
        self._process = process
        self._pace = pace
        self._figures = Figures(0, 0.0)
        self._plan: CompactionPlan | None = plan  # sent with the first call

    @property
    def written_bytes(self) -> int:
        return self._figures.written_bytes

    @property
    def map_use(self) -> float:
        return self._figures.map_use

    def build_map(self) -> int:
        end_offset: int = self._call("build_map")
        return end_offset

    def groups(self) -> list[list[SourceSegment]]:
        groups: list[list[SourceSegment]] = self._call("groups")
        return groups

    def write_cleaned(self, group: Sequence[SourceSegment]) -> CleanedFiles:
        cleaned: CleanedFiles = self._call("write_cleaned", group)
        return cleaned

    def _call(self, method: str, *arguments: Any) -> Any:
        process = self._process
        try:
            if self._plan is not None:
                send(process.stdin, self._plan)
                self._plan = None
            send(process.stdin, (method, arguments))
            while (message := receive(process.stdout))[0] == "took":
                self._pace.took(message[1])
                send(process.stdin, self._pace.bytes_between_reports())
        except (EOFError, OSError, ValueError):
            raise self._worker.lost() from None
        if message[0] == "failed":
            raise message[1].error()
        _, result, self._figures = message
        return result
