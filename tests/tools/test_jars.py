"""Jars are fetched once for each pom, and errors of Maven are reported. A fake Maven records each call."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.jars import SETS, FetchFailed, MavenMissing, fetch_jars

Fetch = Callable[[], dict[str, Path]]

BRINGS_ONE_JAR = """#!/bin/sh
echo call >> "$(dirname "$0")/calls"
for argument; do case "$argument" in -Djars.directory=*) directory="${argument#*=}" ;; esac; done
mkdir -p "$directory" && touch "$directory/kafka-clients-4.1.0.jar"
"""
FAILS = """#!/bin/sh
echo "[INFO] scanning"
echo "[ERROR] unknown artifact"
exit 1
"""


@pytest.fixture
def pom(tmp_path: Path) -> Path:
    path = tmp_path / "poms" / "some" / "pom.xml"
    path.parent.mkdir(parents=True)
    path.write_text("<project/>")
    return path


@pytest.fixture
def fetch(tmp_path: Path, pom: Path) -> Fetch:
    return lambda: fetch_jars("some", poms=pom.parent.parent, cache=tmp_path / "cache")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the only directory on the PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def install(commands: Path, name: str, script: str) -> None:
    (commands / name).write_text(script.replace("#!/bin/sh", f"#!/bin/sh\nPATH={os.defpath}", 1))
    (commands / name).chmod(0o755)


def test_jars_are_named_by_artifact_and_version(commands: Path, fetch: Fetch, tmp_path: Path) -> None:
    install(commands, "java", "")
    install(commands, "mvn", BRINGS_ONE_JAR)
    assert fetch() == {"kafka-clients-4.1.0": tmp_path / "cache" / "some" / "kafka-clients-4.1.0.jar"}


def test_cached_jars_are_not_fetched_again(commands: Path, fetch: Fetch) -> None:
    install(commands, "java", "")
    install(commands, "mvn", BRINGS_ONE_JAR)
    fetch()
    fetch()
    assert (commands / "calls").read_text() == "call\n"


def test_cached_jars_need_no_maven(commands: Path, fetch: Fetch) -> None:
    install(commands, "java", "")
    install(commands, "mvn", BRINGS_ONE_JAR)
    fetched = fetch()
    (commands / "mvn").unlink()
    assert fetch() == fetched


def test_a_changed_pom_is_fetched_again(commands: Path, fetch: Fetch, pom: Path) -> None:
    install(commands, "java", "")
    install(commands, "mvn", BRINGS_ONE_JAR)
    fetch()
    pom.write_text("<project>other</project>")
    fetch()
    assert (commands / "calls").read_text() == "call\ncall\n"


@pytest.mark.parametrize("present", ["java", "mvn"])
def test_missing_maven_or_java_raises(commands: Path, fetch: Fetch, present: str) -> None:
    install(commands, present, BRINGS_ONE_JAR)
    with pytest.raises(MavenMissing, match="the jars of some"):
        fetch()


def test_a_failure_of_maven_is_reported_and_nothing_is_cached(commands: Path, fetch: Fetch) -> None:
    install(commands, "java", "")
    install(commands, "mvn", FAILS)
    with pytest.raises(FetchFailed, match=r"\[ERROR\] unknown artifact"):
        fetch()
    install(commands, "mvn", BRINGS_ONE_JAR)
    assert list(fetch()) == ["kafka-clients-4.1.0"]


def test_every_set_has_its_pom_and_every_pom_its_set() -> None:
    poms = Path(__file__).parents[1] / "jars"
    assert sorted(path.parent.name for path in poms.glob("*/pom.xml")) == sorted(SETS)
