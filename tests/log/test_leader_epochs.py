from __future__ import annotations

import pytest

from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.testing.faulty_filesystem import FaultyFileSystem


@pytest.fixture
def epochs(faulty: FaultyFileSystem) -> LeaderEpochs:
    found = LeaderEpochs(faulty, "/leader-epoch-checkpoint")
    for epoch, start in ((2, 10), (3, 20), (5, 40)):
        found.assign(epoch, start_offset=start)
    return found


def test_the_file_has_kafkas_format(faulty: FaultyFileSystem, epochs: LeaderEpochs) -> None:
    assert faulty.read("/leader-epoch-checkpoint") == b"0\n3\n2 10\n3 20\n5 40\n"
    assert LeaderEpochs(faulty, "/leader-epoch-checkpoint").entries == epochs.entries


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (5, (5, 77)),  # the current epoch ends with the log
        (6, (-1, -1)),  # not known yet
        (4, (3, 40)),  # the largest one below
        (3, (3, 40)),
        (2, (2, 20)),
        (1, (1, 10)),  # older than everything: ends where the oldest begins
        (-1, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_begins(epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, log_end_offset=77) == answer


def test_without_any_epoch_the_answer_is_undefined(faulty: FaultyFileSystem) -> None:
    assert LeaderEpochs(faulty, "/none").end_offset_for(0, log_end_offset=5) == (-1, -1)


def test_the_epoch_of_an_offset_is_found(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_at(offset) for offset in (9, 10, 19, 20, 39, 40, 99)] == [-1, 2, 2, 3, 3, 5, 5]


def test_a_new_epoch_removes_later_entries(epochs: LeaderEpochs) -> None:
    epochs.assign(6, start_offset=15)
    assert epochs.entries == [(2, 10), (6, 15)]
    assert epochs.latest == 6


def test_the_same_epoch_keeps_its_first_start(epochs: LeaderEpochs) -> None:
    epochs.assign(5, start_offset=60)
    assert epochs.entries[-1] == (5, 40)


def test_truncating_from_either_side(faulty: FaultyFileSystem, epochs: LeaderEpochs) -> None:
    epochs.truncate_from_end(40)
    assert epochs.entries == [(2, 10), (3, 20)]
    epochs.truncate_from_start(25)
    assert epochs.entries == [(3, 25)]
    assert epochs.latest == 3
    assert LeaderEpochs(faulty, "/leader-epoch-checkpoint").entries == [(3, 25)]
    epochs.truncate_from_start(5)
    assert epochs.entries == [(3, 25)]


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n2\n1 1\n", b"1\n0\n", b"0\n1\nx y\n", b"0\n1\n1 2 3\n"])
def test_a_damaged_file_is_reported_as_unreadable(faulty: FaultyFileSystem, content: bytes) -> None:
    faulty.replace("/e", content)
    epochs = LeaderEpochs(faulty, "/e")
    assert not epochs.is_readable
    assert epochs.entries == []
