"""Log that is opened at its first use, and closed."""

from __future__ import annotations

from kbroker.log.files.filesystem import FileSystem
from tests.log.batches import NOW, append, append_as_leader, closed_log, make_batch, read_values

Place = tuple[FileSystem, str]


def test_commit_all_commits_everything_whether_the_log_is_open_or_not(place: Place) -> None:
    handle = closed_log(*place)
    log = handle.open()
    append_as_leader(log, make_batch(b"a"), 0, NOW)
    assert log.high_watermark == 0
    handle.commit_all()
    assert log.high_watermark == 1
    handle.close()
    again = closed_log(*place)
    again.commit_all()
    assert again.opened is None
    assert again.known_offsets == (0, 0)
    assert again.open().high_watermark == 1
    assert again.known_offsets == (0, 1)
    again.close()


def test_a_closed_log_can_be_opened_again_where_it_was(place: Place) -> None:
    handle = closed_log(*place)
    for value in (b"a", b"b"):
        append(handle.open(), make_batch(value))
    handle.open().cleaner_offset = 1
    handle.open().delete_records_before(1)
    handle.close()
    assert (handle.known_offsets, handle.cleaner_offset) == ((1, 2), 1)
    assert handle.opened is None
    assert read_values(handle.open()) == [(1, b"b")]
    handle.close()
