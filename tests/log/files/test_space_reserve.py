"""The file that keeps space free in a data directory."""

from __future__ import annotations

import errno

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import FileSystem, OsFileSystem
from kbroker.log.files.space_reserve import RESERVE_FILE, SpaceReserve
from kbroker.testing.faulty_filesystem import FaultyFileSystem

SIZE = 2_500_000
STEP = 1 << 20
HEADROOM = 1 << 20
FILE = f"/data/{RESERVE_FILE}"


def new_reserve(filesystem: FileSystem, size: int = SIZE) -> SpaceReserve:
    filesystem.make_directory("/data")
    return SpaceReserve(filesystem, "/data", size)


def test_a_restored_reserve_has_its_size_and_gives_it_back(faulty: FaultyFileSystem) -> None:
    faulty.free_bytes = SIZE + HEADROOM
    reserve = new_reserve(faulty)
    assert reserve.restore()
    assert faulty.size(FILE) == SIZE
    assert faulty.free_bytes == HEADROOM
    assert reserve.release()
    assert faulty.free_bytes == HEADROOM + STEP
    assert reserve.release()
    assert reserve.release()
    assert faulty.free_bytes == HEADROOM + SIZE
    assert not reserve.release()
    assert reserve.restore()
    assert faulty.size(FILE) == SIZE


@pytest.mark.parametrize("missing", [1, HEADROOM, HEADROOM + SIZE])
def test_without_space_beyond_it_a_reserve_is_not_restored_and_takes_nothing(
    faulty: FaultyFileSystem, missing: int
) -> None:
    faulty.free_bytes = SIZE + HEADROOM - missing
    assert not new_reserve(faulty).restore()
    assert faulty.free_bytes == SIZE + HEADROOM - missing
    assert not faulty.exists(FILE)


def test_a_reserve_that_is_held_stays_when_the_rest_of_the_disk_is_full(faulty: FaultyFileSystem) -> None:
    reserve = new_reserve(faulty)
    assert reserve.restore()
    faulty.free_bytes = 10
    assert not reserve.restore()
    assert faulty.size(FILE) == SIZE
    assert faulty.free_bytes == 10


def test_a_reserve_without_a_size_only_tries_whether_there_is_space(faulty: FaultyFileSystem) -> None:
    reserve = new_reserve(faulty, 0)
    assert reserve.restore()
    faulty.free_bytes = 0
    assert not reserve.restore()
    assert not faulty.exists(FILE)
    assert not reserve.release()


def test_a_broken_disk_is_not_a_full_one(faulty: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = new_reserve(faulty)
    monkeypatch.setattr(faulty, "allocate_all", lambda size, path: faulty.fail(errno.EIO, path))
    with pytest.raises(StorageFailure):
        reserve.restore()


def test_a_system_that_cannot_preallocate_writes_the_reserve(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    directory = tmp_path_factory.mktemp("data")
    assert SpaceReserve(OsFileSystem(), str(directory), SIZE).restore()
    file = directory / RESERVE_FILE
    assert file.stat().st_size == SIZE
    assert file.stat().st_blocks * 512 >= SIZE
