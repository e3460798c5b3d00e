"""Downloads the jars of `tests/jars/<name>/pom.xml` with Maven into `.cache/jars/<name>/`, once for each pom.

Several processes may call it at the same time. Never deletes jars that it did not download.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SETS", "FetchFailed", "MavenMissing", "fetch_jars"]

ROOT = Path(__file__).resolve().parent.parent
POMS = ROOT / "tests" / "jars"
CACHE = ROOT / ".cache" / "jars"
SETS = ("specs", "judge41", "judge39", "clients28", "spark", "streams", "tables")


class MavenMissing(Exception):
    """Maven is not installed, and the jars are not in the cache."""


class FetchFailed(Exception):
    """Maven failed; the message has its errors."""


def fetch_jars(name: str, *, poms: Path = POMS, cache: Path = CACHE) -> dict[str, Path]:
    """Returns the jars of one set, file stem -> path, and downloads them first if they are not in the cache."""
    pom = poms / name / "pom.xml"
    directory = cache / name
    pom_hash = hashlib.sha256(pom.read_bytes()).hexdigest()
    if not _is_complete(directory, pom_hash):
        with _locked(cache):
            if not _is_complete(directory, pom_hash):
                _run_maven(pom, directory, pom_hash)
    return {jar.stem: jar for jar in sorted(directory.glob("*.jar"))}


def _is_complete(directory: Path, pom_hash: str) -> bool:
    marker = directory / ".complete"
    return marker.is_file() and marker.read_text() == pom_hash


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Locks all sets: Maven's local repository supports only one writer."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_maven(pom: Path, directory: Path, pom_hash: str) -> None:
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise MavenMissing(f"Maven and a JDK are needed to download the jars of {pom.parent.name}")
    fresh = directory.with_name(f".{directory.name}.fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [maven, "-B", "-q", "-ntp", "-f", str(pom), "package", f"-Djars.directory={fresh}"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not any(fresh.glob("*.jar")):
        raise FetchFailed(f"Maven could not download the jars of {pom.parent.name}:\n{_errors_of(result.stdout)}")
    (fresh / ".complete").write_text(pom_hash)
    shutil.rmtree(directory, ignore_errors=True)
    fresh.rename(directory)


def _errors_of(output: str) -> str:
    lines = [line for line in output.splitlines() if "ERROR" in line]
    return "\n".join(lines[:8]) or output[-2000:]


def main(names: list[str]) -> int:
    for name in names:
        try:
            jars = fetch_jars(name)
        except MavenMissing as problem:
            print(f"jars: {problem}; tests that need them will be skipped")
        except FetchFailed as problem:
            print(f"jars: {problem}", file=sys.stderr)
            return 1
        else:
            print(f"jars: {name}: {len(jars)} ready")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(SETS)))
