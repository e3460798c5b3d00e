"""The plugin as its users have it: found by its entry point, in a pytest of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SAMPLE_PROJECT = Path(__file__).parent / "sample_project"
TESTS_OF_SAMPLE = 13


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in an environment that knows nothing of this project but kbroker."""
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "200"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def left_by(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory / "temporary") if name.startswith("kbroker-")]


@pytest.fixture
def sample_project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE_PROJECT, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    "arguments",
    [pytest.param((), id="alone"), pytest.param(("-n", "2"), id="with workers", marks=pytest.mark.slow)],
)
def test_the_sample_project_passes_and_leaves_nothing_behind(sample_project: Path, arguments: tuple[str, ...]) -> None:
    result = run_pytest(sample_project, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(rf"\b{TESTS_OF_SAMPLE} passed", result.stdout), result.stdout
    assert left_by(sample_project) == []


def test_it_is_installed_with_the_package() -> None:
    (plugin,) = entry_points(group="pytest11", name="kbroker")
    assert plugin.value == "kbroker.testing.pytest_plugin"


def test_a_run_without_its_fixtures_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_what_is_imported():\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] == 'kbroker'}\n"
        "    assert ours == {'kbroker', 'kbroker.testing', 'kbroker.testing.pytest_plugin'}\n"
        "    assert not {'trio', 'sqlite3', 'construct'} & set(sys.modules)\n"
    )
    # pytest-trio, where it is installed, imports trio itself.
    result = run_pytest(tmp_path, "-p", "no:trio", "-p", "no:pytest_trio", "-p", "no:hypothesispytest")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_markers_and_fixtures_are_explained(tmp_path: Path) -> None:
    markers = run_pytest(tmp_path, "--markers").stdout
    assert "@pytest.mark.kbroker_topics(*topics): topics that the broker" in markers
    assert "@pytest.mark.kbroker_settings(**settings): configs of the broker" in markers
    fixtures = run_pytest(tmp_path, "--fixtures").stdout
    assert re.search(r"^kbroker -- .*\n +A Kafka broker for one test", fixtures, re.MULTILINE)
    for scope in ("class", "module", "session"):
        assert re.search(rf"^kbroker_{scope} \[{scope} scope\] -- ", fixtures, re.MULTILINE)


def test_a_declared_topic_that_cannot_be_is_an_error_of_the_test_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_bad.py").write_text(
        "import pytest\n@pytest.mark.kbroker_topics('orders:none')\ndef test_orders(kbroker): pass\n"
    )
    result = run_pytest(tmp_path)
    assert "1 error" in result.stdout
    assert "Invalid topic 'orders:none': expected name or name:partitions" in result.stdout
    assert left_by(tmp_path) == []


def test_a_failing_test_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text("def test_orders(kbroker): assert kbroker.topics == ['none']\n")
    result = run_pytest(tmp_path)
    assert "1 failed" in result.stdout
    assert left_by(tmp_path) == []


def test_brokers_are_shared_by_a_class_and_by_a_module(tmp_path: Path) -> None:
    (tmp_path / "test_shared.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.kbroker_settings(num_partitions=2)\n"
        "ports = set()\n"
        "@pytest.mark.kbroker_topics('of-class')\n"
        "class TestOrders:\n"
        "    def test_one(self, kbroker_class, kbroker_module):\n"
        "        kbroker_class.produce('of-class', ['a', 'b'])\n"
        "        assert [record.partition for record in kbroker_class.records('of-class')] == [0, 1]\n"
        "        ports.update((kbroker_class.port, kbroker_module.port))\n"
        "    @pytest.mark.kbroker_topics('of-two:3')\n"
        "    def test_two(self, kbroker_class, kbroker_module):\n"
        "        assert len(kbroker_class.records('of-class')) == 2\n"
        "        assert 'of-two' in kbroker_class.topics\n"
        "        assert ports == {kbroker_class.port, kbroker_module.port}\n"
        "class TestOthers:\n"
        "    def test_three(self, kbroker_class, kbroker_module):\n"
        "        assert kbroker_class.topics == []\n"
        "        assert kbroker_module.topics == ['of-class', 'of-two']\n"
    )
    result = run_pytest(tmp_path)
    assert "3 passed" in result.stdout, result.stdout
    assert left_by(tmp_path) == []


def test_an_unknown_setting_is_one_warning_at_the_line_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_typo.py").write_text(
        "import pytest\n\n\n@pytest.mark.kbroker_settings(num_partition=3)\ndef test_orders(kbroker): pass\n"
    )
    result = run_pytest(tmp_path)
    assert "1 passed, 1 warning" in result.stdout, result.stdout
    assert re.search(r"test_typo\.py:4: UserWarning: .*num\.partition.*did you mean num\.partitions", result.stdout)
