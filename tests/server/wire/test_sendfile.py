from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kbroker.server.wire.sendfile import is_in_page_cache, read_ahead


def test_bytes_that_were_just_written_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file:
        assert is_in_page_cache(file.fileno(), 0, 100_000)
        assert is_in_page_cache(file.fileno(), 99_999, 1)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot be asked")
def test_both_ends_are_probed_and_one_cold_end_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[int] = []

    def preadv(file_number: int, buffers: list[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        probed.append(position)
        if position == 1099:
            raise BlockingIOError(errno.EAGAIN, "cold")
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert not is_in_page_cache(5, 100, 1000)
    assert probed == [100, 1099]
    assert is_in_page_cache(5, 100, 500)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot be asked")
def test_a_filesystem_that_cannot_say_counts_as_warm_and_a_broken_disk_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = errno.EOPNOTSUPP

    def preadv(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", preadv)
    assert is_in_page_cache(5, 0, 10)
    code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        is_in_page_cache(5, 0, 10)


def test_without_a_file_or_without_the_flag_everything_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_in_page_cache(-1, 0, 10)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    assert is_in_page_cache(10**6, 0, 10)


def test_reading_ahead_covers_the_range_and_ends_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(700_000))
    read: list[tuple[int, int]] = []
    preadv = os.preadv

    def counted(file_number: int, buffers: list[memoryview], position: int) -> int:
        count = preadv(file_number, buffers, position)
        read.append((position, count))
        return count

    monkeypatch.setattr(os, "preadv", counted)
    with path.open("rb") as file:
        read_ahead(file.fileno(), 1000, 600_000)
        assert read[0][0] == 1000
        assert sum(count for _, count in read) == 600_000
        read.clear()
        read_ahead(file.fileno(), 600_000, 600_000)
        assert sum(count for _, count in read) == 100_000
