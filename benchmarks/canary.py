"""A client with small requests in its own process, and the memory of the broker meanwhile.

The client sends a Produce of 20 KB every 20 ms. A wait is counted from the moment at which the request was due, so that
a broker that stops for a second shows a wait of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks.connection import Address, Connection
from benchmarks.frames import make_records, produce_frame, read_produce_answer, record_batch
from benchmarks.topics import WrongAnswer

__all__ = ["Canary", "PeakMemory", "canary_beside"]

INTERVAL_SECONDS = 0.02
RECORDS, RECORD_BYTES = 100, 200
VERSION = 7
RESET_PEAK = "5"  # see proc(5), clear_refs


class Canary:
    """The other process, seen from this one."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def pop_longest_wait(self) -> float:
        """Returns the longest wait since the last call, in seconds. Raises WrongAnswer if a response was wrong."""
        self._pipe.send("report")
        answer: float | str = self._pipe.recv()
        if isinstance(answer, str):
            raise WrongAnswer(answer)
        return answer


@contextmanager
def canary_beside(address: Address, topic: bytes) -> Iterator[Canary]:
    """Runs the client. A thread would wait for the attacker, who needs the GIL."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=sing, args=(address, topic, theirs), daemon=True)
    process.start()
    try:
        canary = Canary(ours)
        canary.pop_longest_wait()  # waits until the process has started
        yield canary
    finally:
        ours.send("stop")
        process.join(10)
        if process.is_alive():
            process.kill()


def sing(address: Address, topic: bytes, pipe: Pipe) -> None:
    try:
        _sing(address, topic, pipe)
    except (OSError, EOFError, WrongAnswer) as problem:
        pipe.send(f"The canary failed: {problem!r}")


def _sing(address: Address, topic: bytes, pipe: Pipe) -> None:
    batch = record_batch(RECORDS, make_records(RECORDS, RECORD_BYTES), now_ms=int(time.time() * 1000))
    request, _ = produce_frame(version=VERSION, topic=topic, batch=batch, acks=1)
    longest = 0.0
    with Connection(address) as connection:
        due = time.perf_counter()
        while True:
            time.sleep(max(0.0, due - time.perf_counter()))
            connection.send(request)
            answer = read_produce_answer(VERSION, connection.answer(), topic)
            if answer.error_code:
                raise WrongAnswer(f"a Produce got error {answer.error_code}")
            now = time.perf_counter()
            longest = max(longest, now - due)
            due = max(due + INTERVAL_SECONDS, now)
            if pipe.poll():
                if pipe.recv() == "stop":
                    return
                pipe.send(longest)
                longest = 0.0


class PeakMemory:
    """Resident memory of a process in MB, and its peak since the last reset."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")

    def reset(self) -> None:
        (self._directory / "clear_refs").write_text(RESET_PEAK)

    @property
    def peak_mb(self) -> float:
        return self._read("VmHWM")

    @property
    def resident_mb(self) -> float:
        pages = int((self._directory / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def _read(self, name: str) -> float:
        for line in (self._directory / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1024
        raise ValueError(f"{name} is not in {self._directory}/status")
