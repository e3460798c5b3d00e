"""Child processes of the scenarios: their output goes to a file, and they are always stopped."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["StartFailed", "free_ports", "run_kbroker", "running", "wait_until"]

START_SECONDS = 120.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
# Below the ports that systems give to connections: none of them takes a port before its program does, or while the
# program is restarted.
_PORTS = range(10_000, 30_000)
_RANDOM = random.SystemRandom()  # test processes must not choose the same ports
READY = re.compile(r"^kbroker is ready on (\S+)$", re.MULTILINE)


class StartFailed(Exception):
    """A broker did not become ready; the message has the end of its log."""


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command with stdout and stderr in `log`. Stops it with SIGTERM, and with SIGKILL after 20 seconds."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(
    is_ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    *,
    timeout_s: float = START_SECONDS,
    name: str,
) -> None:
    """Polls a child process until it is ready. Raises StartFailed if the process ends or the timeout passes."""
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if process.poll() is not None:
            raise StartFailed(f"{name} ended with {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise StartFailed(f"{name} was not ready after {timeout_s:.0f} s:\n{_tail(log)}")
        time.sleep(POLL_SECONDS)


@contextmanager
def run_kbroker(
    directory: Path, *arguments: str, port: int = 0, listen: bool = True
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Runs `kbroker serve` with its log in `directory`; yields its address and its process.

    `listen`: False if the arguments have listeners of their own.
    """
    log = directory / "kbroker.log"
    options = ["--listen", f"127.0.0.1:{port}"] if listen else []
    command = [sys.executable, "-m", "kbroker", "serve", *options, *arguments]
    with running(command, log) as process:
        wait_until(lambda: READY.search(log.read_text()) is not None, process, log, name="kbroker")
        match = READY.search(log.read_text())
        assert match is not None
        yield match[1], process


def free_ports(count: int) -> list[int]:
    """Returns different ports that are free now, for programs that cannot bind port 0 and report their port."""
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        with suppress(OSError):  # the port is in use
            sockets.append(socket.create_server(("127.0.0.1", _RANDOM.choice(_PORTS))))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
