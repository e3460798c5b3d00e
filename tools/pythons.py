"""Prints the other supported Pythons of this machine, one executable for each version: `python -m tools.pythons`.

Supported are the versions of the classifiers in pyproject.toml. The version that runs this program is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["find_pythons", "supported_versions"]

ROOT = Path(__file__).resolve().parent.parent
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def supported_versions() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [match[1] for text in project["classifiers"] if (match := _CLASSIFIER.fullmatch(text))]


def find_pythons(versions: Iterable[str], *, path: str, pyenv: Path) -> dict[str, str]:
    """Returns version -> executable, for versions that are on the path or installed by pyenv."""
    found = {}
    for version in versions:
        executable = next(filter(lambda name: _version_of(name) == version, _candidates(version, path, pyenv)), None)
        if executable is not None:
            found[version] = executable
    return found


def _candidates(version: str, path: str, pyenv: Path) -> Iterator[str]:
    yield from (os.path.join(directory, f"python{version}") for directory in path.split(os.pathsep))
    yield from sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")))


def _version_of(executable: str) -> str | None:
    """Returns major.minor, or None if it cannot be run: pyenv puts stubs of unused versions on the path."""
    command = [executable, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def main() -> int:
    own = "{}.{}".format(*sys.version_info[:2])
    others = [version for version in supported_versions() if version != own]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for executable in find_pythons(others, path=os.environ["PATH"], pyenv=pyenv).values():
        print(executable)
    return 0


if __name__ == "__main__":
    sys.exit(main())
