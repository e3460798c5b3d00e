"""Every example of the pages about testing runs as it stands there. Its first line, a comment, names its file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "testing.md"
PAGES = (PAGE, DOCS / "migrating-from-testcontainers.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
INI = "[pytest]\nfilterwarnings =\n  error\n  ignore:(read|open)_text is deprecated:DeprecationWarning\n"


def after(patch: str) -> str:
    """What a diff makes of its file."""
    return "".join(line[1:] for line in patch.splitlines(keepends=True) if not line.startswith("-"))


BLOCKS = [
    (kind, after(text) if kind == "diff" else text)
    for page in PAGES
    for kind, text in BLOCK.findall(page.read_text("utf-8"))
]
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
SOURCES = [text for kind, text in BLOCKS if kind != "sh"]
FILES = {match[1]: source for source in SOURCES if (match := FILE_NAME.match(source))}
SCRIPTS = sorted(name for name in FILES if not name.startswith("test_") and name != "conftest.py")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(INI)
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path


def run(command: list[str], directory: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    environment["TMPDIR"] = str(temporary)
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [name for name in os.listdir(temporary) if name.startswith("kbroker-")] == []
    return result.stdout


def test_every_block_has_a_name_of_its_own() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "diff", "sh"}
    assert len(FILES) == len(SOURCES) > 5


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_runs(name: str, examples: Path) -> None:
    run([sys.executable, name], examples)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs_and_the_tests_pass(command: str, examples: Path) -> None:
    output = run([*command.split(), "-p", "no:cacheprovider"], examples)
    count = sum(source.count("def test_") for name, source in FILES.items() if name.startswith("test_"))
    assert f"{count} passed" in output


def test_the_unittest_runs_by_itself(examples: Path) -> None:
    run([sys.executable, "-m", "unittest", "test_unittest"], examples)


def test_every_fault_is_explained() -> None:
    from kbroker.testing import Faults

    inner = {"attach", "intercept", "is_idle"}  # what the broker calls
    offered = {name for name in vars(Faults) if not name.startswith("_")} - inner
    assert offered == {name for name in offered if f"`{name}(" in PAGE.read_text("utf-8")}


def test_the_reference_names_every_member_of_a_broker() -> None:
    import kbroker.testing

    page = PAGE.read_text("utf-8")
    reference = page[page.index("## Reference") :]
    names = {name for name in vars(kbroker.testing.Broker) if not name.startswith("_")} | set(kbroker.testing.__all__)
    assert {name for name in names if not re.search(rf"`{name}\b", reference)} == set()


def test_every_fixture_is_explained() -> None:
    from kbroker.testing import pytest_plugin

    fixtures = {name for name in vars(pytest_plugin) if name.startswith("kbroker")}
    assert fixtures == {name for name in fixtures if f"| `{name}` |" in PAGE.read_text("utf-8")}
    assert len(fixtures) == 5
