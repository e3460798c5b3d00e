"""Runs the commands of a page in a temporary directory, against a broker on a free port."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

__all__ = ["Shell"]

TIMEOUT_SECONDS = 60
BROKER = "127.0.0.1:9092"
MONITOR = "127.0.0.1:9308"

# Variables of the test run that a user does not have. `make test ARGS=...` passes its options to every other make.
NOT_INHERITED = ("PYTEST", "KBROKER_", "MAKE", "MFLAGS", "ARGS")


class Shell:
    """Replaces the addresses in pages by the real addresses of the broker, and back in the output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / ".venv").symlink_to(sys.prefix)
        self._addresses: dict[str, str] = {}
        self._serving: subprocess.Popen[str] | None = None
        self._serve_line = ""

    def run(self, line: str) -> str:
        """Runs a command and returns its output; `kbroker serve` keeps running."""
        if line == "make run":
            line = self._serve_line_of_make()
        if line.startswith("kbroker serve"):
            return self._serve(line)
        for tool in ("kcat", "curl"):
            if re.search(rf"\b{tool} ", line) and shutil.which(tool) is None:
                pytest.skip(f"needs {tool}")
        return self._with_page_addresses(self._run_to_end(self._with_real_addresses(line)))

    def stop_broker(self) -> None:
        process, self._serving = self._serving, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == 0

    def start_broker_again(self) -> None:
        self._serve(self._serve_line)

    def close(self) -> None:
        if self._serving is not None:
            self._serving.kill()
            self._serving.communicate()

    def _run_to_end(self, line: str) -> str:
        result = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}"
        return result.stdout

    def _serve(self, line: str) -> str:
        assert self._serving is None, "a page has one broker"
        self._serve_line = line
        errors = self.directory / "broker.stderr"
        with errors.open("w") as stderr:
            self._serving = subprocess.Popen(
                ["bash", "-c", f"exec {self._on_free_ports(line)}"],
                cwd=self.directory,
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self._serving.stdout is not None
        ready = next((line for line in self._serving.stdout if line.startswith("kbroker is ready on")), "")
        events = [json.loads(line) for line in errors.read_text().splitlines() if line.startswith("{")]
        assert ready, errors.read_text()
        self._addresses = {BROKER: ready.split()[-1]}
        for event in events:
            if "monitor" in event:
                self._addresses[MONITOR] = event["monitor"][0]
        # As on a terminal, where the log lines appear before the line on stdout.
        logged = [f"2026-01-31 12:00:00 {event['level']:<7} {event['message']}" for event in events]
        return self._with_page_addresses("\n".join([*logged, ready]))

    def _on_free_ports(self, line: str) -> str:
        for file in self.directory.glob("*.properties"):
            file.write_text(file.read_text().replace(BROKER, "127.0.0.1:0"))
        changed = line.replace(BROKER, "127.0.0.1:0").replace(MONITOR, "127.0.0.1:0")
        return changed if "--config" in line or "--listen" in line else f"{changed} --listen 127.0.0.1:0"

    def _serve_line_of_make(self) -> str:
        planned = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", "run"],
            cwd=ROOT,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return planned.stdout.splitlines()[-1].partition("exec .venv/bin/")[2].strip()

    def _with_real_addresses(self, text: str) -> str:
        for written, real in self._addresses.items():
            text = text.replace(written, real)
        return text

    def _with_page_addresses(self, text: str) -> str:
        for written, real in self._addresses.items():
            text = text.replace(real, written)
        return text

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
        if BROKER in self._addresses:
            environment["KBROKER_BOOTSTRAP"] = self._addresses[BROKER]
        return environment
