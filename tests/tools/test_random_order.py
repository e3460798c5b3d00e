"""The order of `--shuffle SEED`: the seed's own, with modules whole, and the same for every worker and every part."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOURCE = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_case(number):
    pass

def test_other():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Four modules of nine tests each."""
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"test_{name}.py").write_text(SOURCE)
    return tmp_path


def run_pytest(project: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(project)]
    command += ["-p", "no:cacheprovider", "-p", "tools.random_order", *arguments]
    result = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def order_of(project: Path, *arguments: str) -> list[str]:
    lines = run_pytest(project, "--collect-only", "-q", *arguments).splitlines()
    return [line for line in lines if "::" in line]


def module_of(test: str) -> str:
    return test.partition("::")[0]


def test_modules_and_their_tests_are_shuffled_and_modules_stay_whole(project: Path) -> None:
    plain, shuffled = order_of(project), order_of(project, "--shuffle", "1")
    assert sorted(shuffled) == sorted(plain)
    modules = [module for module, _ in groupby(shuffled, module_of)]
    assert sorted(modules) == sorted(set(modules))
    assert modules != sorted(modules)
    for module in modules:
        assert [nodeid for nodeid in shuffled if module_of(nodeid) == module] != [
            nodeid for nodeid in plain if module_of(nodeid) == module
        ]


def test_a_seed_gives_the_same_order_each_time_and_another_seed_another(project: Path) -> None:
    assert order_of(project, "--shuffle", "1") == order_of(project, "--shuffle", "1")
    assert order_of(project, "--shuffle", "1") != order_of(project, "--shuffle", "2")


def test_a_part_keeps_the_order_that_it_has_in_the_whole(project: Path) -> None:
    whole = order_of(project, "--shuffle", "1")
    part = order_of(project, "test_c.py", "test_a.py", "--shuffle", "1")
    assert part == [nodeid for nodeid in whole if module_of(nodeid) in ("test_a.py", "test_c.py")]


def test_workers_agree_on_the_order_and_the_seed_is_printed(project: Path) -> None:
    output = run_pytest(project, "-p", "xdist", "-n", "2", "--shuffle", "1")
    assert "random order: --shuffle 1" in output
    assert "36 passed" in output
