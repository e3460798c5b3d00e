"""The built wheel carries the whole package, its types and its command, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the source distribution, and from it a wheel without compiled code, which takes a minute."""
    source = tmp_path_factory.mktemp("source")  # a copy: a build leaves files beside its sources
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("kbroker", "tools", "deploy"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir"]
    environment = {**os.environ, "KBROKER_COMPILE": "0"}
    result = subprocess.run(
        [*command, str(source / "dist"), str(source)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_source_distribution_can_compile(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    hot_path = re.findall(r'"(kbroker/[^"]+\.py)"', (ROOT / "setup.py").read_text())
    assert len(hot_path) > 20
    assert {"setup.py", "pyproject.toml", "kbroker/py.typed", *hot_path} <= names


def test_it_holds_every_module_and_the_marker_of_types(wheel: zipfile.ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kbroker").rglob("*.py")}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == modules | {"kbroker/py.typed"}


def test_it_installs_the_kbroker_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kbroker = kbroker.cli.main:main" in wheel.read(entry_points).decode()


def test_mypy_is_required_in_the_version_that_the_tests_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (requirement,) = [Requirement(text) for text in project["build-system"]["requires"] if text.startswith("mypy")]
    (locked,) = re.findall(r"^mypy==(\S+)", (ROOT / "requirements" / "compile.lock").read_text(), re.MULTILINE)
    assert requirement.specifier.contains(locked)


def test_the_build_of_an_editable_installation_compiles_nothing() -> None:
    """Compiled modules beside their sources would hide changes of the sources."""
    assert [str(path) for path in (ROOT / "kbroker").rglob("*.so")] == []
