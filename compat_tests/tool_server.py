"""Runs Kafka's tools in one JVM: a new JVM for each run would take most of the scenarios' time."""

from __future__ import annotations

import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from compat_tests.apache_kafka import JavaTools

__all__ = ["ToolServer", "running_tool_server"]

SOURCES = Path(__file__).parent / "java"
STOP_SECONDS = 20.0


class ToolServer:
    """Like JavaTools, with `run` only. The runs share one JVM, so static state of a tool stays for the next run."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def run(self, main_class: str, *arguments: str, timeout_s: float = 90) -> str:
        """Returns the tool's stdout; if the tool fails, the error has its stdout and stderr."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b" ".join(b64encode(word.encode()) for word in (main_class, *arguments)) + b"\n")
        process.stdin.flush()
        watchdog = Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            answer = process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, f"{main_class} ended its JVM, or did not end within {timeout_s:.0f} s"
        status, output, errors = answer.rstrip(b"\n").split(b" ")
        printed = b64decode(output).decode()
        if int(status) != 0:
            raise AssertionError(f"{main_class} ended with {int(status)}:\n{printed}\n{b64decode(errors).decode()}")
        return printed


@contextmanager
def running_tool_server(tools: JavaTools, directory: Path) -> Iterator[ToolServer]:
    classes = directory / "classes"
    tools.compile(sorted(SOURCES.glob("*.java")), classes)
    command = tools.with_classes(classes).command("ToolServer", ())
    with open(directory / "tool-server.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    with process:
        try:
            yield ToolServer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the server exits at the end of its input
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
