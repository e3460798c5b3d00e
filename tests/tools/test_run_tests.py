"""Failed tests run once more: one that passes alone is listed, one that fails again fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import MOST_REPEATED

ROOT = Path(__file__).parents[2]

# Passes if it runs alone, as a test that needs more time on a busy machine does.
UNSTABLE = """
import os, pytest
def test_stable(): pass
def test_unstable(request): assert len(request.session.items) == 1
"""
WRONG = "def test_stable(): pass\ndef test_wrong(): assert False\n"


def run(directory: Path, source: str) -> tuple[int, str]:
    (directory / "test_it.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tools.run_tests", "-p", "xdist", "-c", os.devnull, "--rootdir", str(directory)]
    result = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout


def test_a_test_that_passes_alone_is_listed(tmp_path: Path) -> None:
    status, output = run(tmp_path, UNSTABLE)
    assert status == pytest.ExitCode.OK, output
    assert output.endswith("Failed once, and passed alone:\n  test_it.py::test_unstable\n")


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, WRONG)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert output.count("FAILED test_it.py::test_wrong") == 2


def test_many_failures_are_not_repeated(tmp_path: Path) -> None:
    wrong = "".join(f"def test_{number}(): assert False\n" for number in range(MOST_REPEATED + 1))
    status, output = run(tmp_path, wrong)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert output.count("FAILED test_it.py::test_0 ") == 1


def test_a_broken_module_is_not_repeated(tmp_path: Path) -> None:
    status, output = run(tmp_path, "import no_such_module\n")
    assert status == pytest.ExitCode.INTERRUPTED
    assert "again" not in output
