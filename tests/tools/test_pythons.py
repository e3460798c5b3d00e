"""Finding the Pythons of a machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.pythons import find_pythons, supported_versions

OWN = "{}.{}".format(*sys.version_info[:2])


def write_program(path: Path, version: str) -> str:
    """Writes a program that answers as a Python of this version, or fails if the version is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return str(path)


def test_the_version_that_runs_the_tests_is_supported() -> None:
    assert OWN in supported_versions()


def test_a_python_on_the_path_comes_before_one_of_pyenv(tmp_path: Path) -> None:
    on_path = write_program(tmp_path / "bin" / "python3.98", "3.98")
    write_program(tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python3.98", "3.98")
    path = os.pathsep.join([str(tmp_path / "nothing"), str(tmp_path / "bin")])
    assert find_pythons(["3.98"], path=path, pyenv=tmp_path / "pyenv") == {"3.98": on_path}


def test_stubs_and_other_versions_are_passed_over(tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "python3.98", "")
    write_program(tmp_path / "bin" / "python3.97", "3.96")
    installed = write_program(tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python3.98", "3.98")
    found = find_pythons(["3.97", "3.98"], path=str(tmp_path / "bin"), pyenv=tmp_path / "pyenv")
    assert found == {"3.98": installed}


def test_the_running_python_is_found(tmp_path: Path) -> None:
    (tmp_path / f"python{OWN}").symlink_to(sys.executable)
    assert list(find_pythons([OWN], path=str(tmp_path), pyenv=tmp_path)) == [OWN]
