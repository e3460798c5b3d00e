from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.files.filesystem import FileSystem, OsFileSystem
from kbroker.testing.faulty_filesystem import FaultyFileSystem


@pytest.fixture(params=["real", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """A file system and an empty directory in it: the real one, and the twin that must behave like it."""
    if request.param == "real":
        return OsFileSystem(), str(tmp_path)
    faulty = FaultyFileSystem()
    faulty.make_directory("/data")
    return faulty, "/data"


@pytest.fixture
def faulty() -> FaultyFileSystem:
    return FaultyFileSystem()
