"""Process that compacts logs beside the broker, so that the event loop does not wait for the interpreter.

    broker -> process   a CompactionPlan; then the name of a method of Compaction and its arguments
    process -> broker   ("took", bytes) after some reads and writes, answered with the number of bytes until the next
                        report; then ("done", result, figures) or ("failed", failure)

Messages are pickled, with their length in front, over stdin and stdout. The process only writes `.cleaned` files: the
broker renames them. It ends as soon as stdin does, so it never outlives the broker. Never imports trio.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import IO, Any, Final, NamedTuple

from kbroker.errors import StorageFailure
from kbroker.log.cleaning.compaction import Compaction, CompactionPlan
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch

__all__ = ["Failure", "Figures", "main", "receive", "send"]

_LENGTH: Final = struct.Struct(">Q")
_NICENESS: Final = 19  # the broker and its clients get the core first


class Figures(NamedTuple):
    written_bytes: int
    map_use: float


class Failure(NamedTuple):
    """Exception of the process: `code` is set for a damaged log, `is_full` for a failed disk, neither for a bug."""

    message: str
    code: int | None = None
    is_full: bool | None = None

    def error(self) -> Exception:
        if self.code is not None:
            return InvalidBatch(ErrorCode(self.code), self.message)
        if self.is_full is not None:
            return StorageFailure(self.message, is_full=self.is_full)
        return RuntimeError(f"Compaction failed in its process:\n{self.message}")


def send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Returns the next message. Raises EOFError if the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


class _ReportedPace:
    """Reports reads and writes, and goes on when the broker has answered: the broker limits the rate."""

    def __init__(self, messages: queue.SimpleQueue[Any], out: IO[bytes]) -> None:
        self._messages = messages
        self._out = out
        self._unreported_bytes = 0
        self._bytes_between_reports = 0

    def tick(self) -> None:
        pass  # no event loop waits for this interpreter

    def took(self, size: int) -> None:
        self._unreported_bytes += size
        if self._unreported_bytes >= self._bytes_between_reports:
            self.report()

    def report(self) -> None:
        if self._unreported_bytes:
            send(self._out, ("took", self._unreported_bytes))
            self._unreported_bytes = 0
            self._bytes_between_reports = self._messages.get()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches all processes of a terminal: the broker decides
    os.nice(_NICENESS)
    gc.disable()  # compaction makes no cycles, and its map has millions of objects
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    out = sys.stdout.buffer
    pace = _ReportedPace(messages, out)
    compaction: Compaction | None = None
    while True:
        match messages.get():
            case CompactionPlan() as plan:
                compaction = Compaction(plan, pace, is_alone=True)
            case str() as method, Sequence() as arguments:
                assert compaction is not None
                try:
                    result = getattr(compaction, method)(*arguments)
                    pace.report()
                    send(out, ("done", result, Figures(compaction.written_bytes, compaction.map_use)))
                except Exception as error:
                    send(out, ("failed", _failure(error)))


def _read(messages: queue.SimpleQueue[Any]) -> None:
    """Reads messages in a thread, so that the end of the broker is noticed while the other thread works."""
    try:
        while True:
            messages.put(receive(sys.stdin.buffer))
    except EOFError:
        os._exit(0)


def _failure(error: Exception) -> Failure:
    if isinstance(error, InvalidBatch):
        return Failure(error.reason, code=int(error.code))
    if isinstance(error, StorageFailure):
        return Failure(str(error), is_full=error.is_full)
    return Failure(traceback.format_exc())
