from __future__ import annotations

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.files.checkpoint import read_offsets, write_offsets
from kbroker.testing.faulty_filesystem import FaultyFileSystem


def test_offsets_survive_in_kafkas_text(faulty: FaultyFileSystem) -> None:
    offsets = {("a", 0): 5, ("b.c-d", 12): 1 << 40}
    write_offsets(faulty, "/c", offsets)
    assert faulty.read("/c") == b"0\n2\na 0 5\nb.c-d 12 1099511627776\n"
    assert read_offsets(faulty, "/c") == offsets


def test_a_missing_checkpoint_is_empty(faulty: FaultyFileSystem) -> None:
    assert read_offsets(faulty, "/none") == {}
    write_offsets(faulty, "/c", {})
    assert faulty.read("/c") == b"0\n0\n"
    assert read_offsets(faulty, "/c") == {}


@pytest.mark.parametrize("content", [b"", b"7\n0\n", b"0\n3\na 0 5\n", b"0\n1\na 0\n", b"0\n1\na x 5\n", b"\xff\xfe"])
def test_a_damaged_checkpoint_is_empty(faulty: FaultyFileSystem, content: bytes) -> None:
    faulty.replace("/c", content)
    assert read_offsets(faulty, "/c") == {}


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(faulty: FaultyFileSystem) -> None:
    write_offsets(faulty, "/c", {("a", 0): 5})
    faulty.free_bytes = 3
    with pytest.raises(StorageFailure):
        write_offsets(faulty, "/c", {("a", 0): 6})
    assert read_offsets(faulty, "/c") == {("a", 0): 5}
