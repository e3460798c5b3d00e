"""Where CI=true, a test skipped because the machine lacks something is a failure; elsewhere it is a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CASES = """
import pytest

def test_lacks_java():
    pytest.skip("needs a JDK: java is not on the PATH")

@pytest.mark.skipif(True, reason="needs kcat")
def test_lacks_kcat():
    pass

@pytest.mark.xfail(reason="needs work")
def test_expected_to_fail():
    assert False

def test_not_for_this_system():
    pytest.skip("only on macOS")
"""


def run_pytest(directory: Path, source: str, *, ci: str) -> str:
    """A pytest of its own, under the project's conftest and nothing else of the project."""
    (directory / "test_case.py").write_text(source)
    (directory / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "no:kbroker", "-c", os.devnull]
    command += ["--rootdir", str(directory), "-o", "markers=jvm: java", str(directory)]
    result = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    return result.stdout


def test_in_ci_a_lack_of_the_machine_fails_the_test(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, CASES, ci="true")
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in output
    assert "CI must run every test, and this one needs a JDK" in output
    assert "CI must run every test, and this one needs kcat" in output


@pytest.mark.parametrize("ci", ["", "false"])
def test_at_home_it_is_listed_as_skipped(tmp_path: Path, ci: str) -> None:
    output = run_pytest(tmp_path, CASES, ci=ci)
    assert "3 skipped, 1 xfailed" in output
    assert "needs a JDK: java is not on the PATH" in output


def test_in_ci_a_module_that_skips_itself_whole_fails_too(tmp_path: Path) -> None:
    source = 'import pytest\npytest.skip("needs Maven", allow_module_level=True)\n'
    output = run_pytest(tmp_path, source, ci="true")
    assert "CI must run every test, and this one needs Maven" in output
    assert "1 error" in output
