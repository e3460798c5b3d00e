"""Fetches the jars of `tests/jars/<name>/pom.xml` through Maven into `.cache/jars/<name>/`, once for each pom.

Safe to call from several processes at a time. Never deletes jars that it did not fetch.
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
SETS = ("specs", "judge41", "judge39", "spark", "streams")


class MavenMissing(Exception):
    """There is no Maven on this machine, and the jars are not in the cache."""


class FetchFailed(Exception):
    """Maven ran and did not bring the jars; the message carries what it said."""


def fetch_jars(name: str, *, poms: Path = POMS, cache: Path = CACHE) -> dict[str, Path]:
    """The jars of one set, file stem -> path, fetched first if the cache lacks them."""
    pom = poms / name / "pom.xml"
    directory = cache / name
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    if not _is_complete(directory, wanted):
        with _locked(cache):
            if not _is_complete(directory, wanted):
                _run_maven(pom, directory, wanted)
    return {jar.stem: jar for jar in sorted(directory.glob("*.jar"))}


def _is_complete(directory: Path, wanted: str) -> bool:
    marker = directory / ".complete"
    return marker.is_file() and marker.read_text() == wanted


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One lock for all sets: Maven's local repository does not bear two writers."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_maven(pom: Path, directory: Path, wanted: str) -> None:
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise MavenMissing(f"Maven and a JDK fetch the jars of {pom.parent.name}, and they are not installed")
    fresh = directory.with_name(f".{directory.name}.fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [maven, "-B", "-q", "-ntp", "-f", str(pom), "package", f"-Djars.directory={fresh}"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not any(fresh.glob("*.jar")):
        raise FetchFailed(f"Maven could not fetch the jars of {pom.parent.name}:\n{_errors_of(result.stdout)}")
    (fresh / ".complete").write_text(wanted)
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
            print(f"jars: {problem}; the tests that use them will be skipped")
        except FetchFailed as problem:
            print(f"jars: {problem}", file=sys.stderr)
            return 1
        else:
            print(f"jars: {name}: {len(jars)} ready")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(SETS)))
