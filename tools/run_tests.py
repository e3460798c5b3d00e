"""Runs pytest, and runs the tests that failed once more, alone: `python -m tools.run_tests ARGUMENTS OF PYTEST`.

Tests with several processes can fail because the machine is busy. A test that passes alone does not fail the run, but
is listed at its end: it is a defect too. If more than a few tests fail, the run fails at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

__all__ = ["run_tests"]

MOST_REPEATED = 5


def run_tests(arguments: Sequence[str]) -> int:
    """Returns pytest's exit code, that of the second run if there was one."""
    with TemporaryDirectory(prefix="pytest-") as cache:
        # A cache of its own: the usual one also knows failures of earlier runs.
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        status = subprocess.call(command)
        failed = _failed_tests(Path(cache))
        if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST_REPEATED:
            return status
        print(f"Running {len(failed)} failed tests again, one after the other.", flush=True)
        status = subprocess.call([*command, "--last-failed", "-n", "0"])
        if status == pytest.ExitCode.OK:
            print("Failed once, and passed alone:", *failed, sep="\n  ", flush=True)
        return status


def _failed_tests(cache: Path) -> list[str]:
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1:]))
