"""One contract for the real file system and its twin in memory."""

from __future__ import annotations

import errno

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import FileSystem, storage_failure
from kbroker.testing.faulty_filesystem import FaultyFileSystem

Place = tuple[FileSystem, str]


def test_bytes_written_at_a_position_are_read_there(place: Place) -> None:
    filesystem, path = place
    file = filesystem.open(f"{path}/a", create=True)
    assert file.write_at([b"hello ", bytearray(b"wor"), memoryview(b"ld")], 0) == 11
    assert file.write_at([b"J"], 0) == 1
    assert file.read_at(100, 0) == b"Jello world"
    assert file.read_at(3, 6) == b"wor"
    assert file.read_at(5, 11) == b""
    assert file.size() == filesystem.size(f"{path}/a") == 11
    file.close()


def test_more_buffers_than_iov_max_are_written_in_part_or_completely(place: Place) -> None:
    filesystem, path = place
    file = filesystem.open(f"{path}/a", create=True)
    written = file.write_at([b"xy"] * 3000, 0)
    assert 0 < written <= 6000
    assert file.read_at(6000, 0) == b"xy" * (written // 2)
    file.close()


def test_truncating_cuts_and_preallocating_fills_with_zeros(place: Place) -> None:
    filesystem, path = place
    file = filesystem.open(f"{path}/a", create=True)
    file.write_at([b"hello"], 0)
    file.truncate(2)
    assert file.read_at(9, 0) == b"he"
    file.preallocate(6)
    assert file.read_at(9, 0) == b"he\0\0\0\0"
    file.sync()
    file.close()


def test_a_missing_file_is_not_a_storage_failure(place: Place) -> None:
    filesystem, path = place
    for call in (filesystem.open, filesystem.read, filesystem.size, filesystem.modified_ms, filesystem.list_names):
        with pytest.raises(FileNotFoundError):
            call(f"{path}/none")
    filesystem.remove(f"{path}/none")
    assert not filesystem.exists(f"{path}/none")


def test_writing_into_a_missing_directory_is_a_storage_failure(place: Place) -> None:
    filesystem, path = place
    with pytest.raises(StorageFailure) as refused:
        filesystem.open(f"{path}/none/a", create=True)
    assert not refused.value.is_full
    with pytest.raises(StorageFailure):
        filesystem.replace(f"{path}/none/a", b"content")
    with pytest.raises(StorageFailure):
        filesystem.rename(f"{path}/none/a", f"{path}/b")


def test_replacing_leaves_the_new_content_and_no_temporary_file(place: Place) -> None:
    filesystem, path = place
    filesystem.replace(f"{path}/a", b"one")
    filesystem.replace(f"{path}/a", b"three", sync=False)
    assert filesystem.read(f"{path}/a") == b"three"
    assert filesystem.list_names(path) == ["a"]


def test_an_open_file_survives_its_renaming_and_its_removal(place: Place) -> None:
    filesystem, path = place
    file = filesystem.open(f"{path}/a", create=True)
    file.write_at([b"hello"], 0)
    filesystem.rename(f"{path}/a", f"{path}/b")
    assert file.read_at(5, 0) == filesystem.read(f"{path}/b") == b"hello"
    filesystem.remove(f"{path}/b")
    assert file.read_at(5, 0) == b"hello"
    assert not filesystem.exists(f"{path}/b")
    file.close()


def test_directories_are_made_listed_renamed_and_removed_whole(place: Place) -> None:
    filesystem, path = place
    filesystem.make_directory(f"{path}/d/e")
    filesystem.make_directory(f"{path}/d/e")
    filesystem.replace(f"{path}/d/e/a", b"x")
    filesystem.replace(f"{path}/f", b"y")
    assert sorted(filesystem.list_names(path)) == ["d", "f"]
    assert filesystem.list_directories(path) == ["d"]
    filesystem.sync_directory(path)
    filesystem.rename(f"{path}/d", f"{path}/g")
    assert filesystem.read(f"{path}/g/e/a") == b"x"
    filesystem.remove_directory(f"{path}/g")
    assert filesystem.list_names(path) == ["f"]
    filesystem.sync_all()


def test_a_lock_is_held_by_one_at_a_time(place: Place) -> None:
    filesystem, path = place
    first = filesystem.lock(f"{path}/.lock")
    assert first is not None
    assert filesystem.lock(f"{path}/.lock") is None
    first.release()
    first.release()
    second = filesystem.lock(f"{path}/.lock")
    assert second is not None
    second.release()


@pytest.mark.parametrize(
    ("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False), (errno.EROFS, False)]
)
def test_only_enospc_and_edquot_mean_that_the_disk_is_full(number: int, is_full: bool) -> None:
    assert storage_failure(OSError(number, "no"), "/a").is_full is is_full


def test_the_faulty_filesystem_is_full_after_free_bytes(faulty: FaultyFileSystem) -> None:
    faulty.free_bytes = 5
    file = faulty.open("/a", create=True)
    assert file.write_at([b"abc", b"def"], 0) == 5
    with pytest.raises(StorageFailure) as caught:
        file.write_at([b"f"], 5)
    assert caught.value.is_full
    file.truncate(2)
    assert file.write_at([b"xyz"], 2) == 3


def test_the_faulty_filesystem_loses_bytes_that_were_not_fsynced_in_a_crash(faulty: FaultyFileSystem) -> None:
    file = faulty.open("/a", create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    file.write_at([b"def"], 3)
    faulty.crash()
    assert faulty.read("/a") == b"abc"
