"""Offset indexes that a follower of Apache Kafka before 3.9.1 wrote (KAFKA-806): one entry for all batches of a fetch,
with the position of the first batch and the last offset of the last one."""

from __future__ import annotations

from itertools import pairwise
from struct import pack

import pytest

from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from tests.log.batches import append, make_batch, open_log, read_values

BATCHES = 40
FETCH = 10  # batches in a fetch
CONFIG = LogConfig(index_interval_bytes=200)


@pytest.fixture
def log(place: tuple[FileSystem, str]) -> OpenLog:
    """A log that was closed cleanly by Apache Kafka and opened here."""
    filesystem, path = place
    written = open_log(filesystem, path, CONFIG)
    for number in range(BATCHES):
        append(written, make_batch(b"%d" % number, b"x" * 50))
    headers = list(written.segments.active.headers())
    written.close()
    entries = [
        pack(">ii", headers[first + FETCH - 1][1].last_offset, headers[first][0])
        for first in range(FETCH, BATCHES, FETCH)
    ]
    filesystem.replace(f"{path}/{0:020d}.index", b"".join(entries))
    return open_log(filesystem, path, CONFIG, high_watermark=2 * BATCHES)


def has_growing_keys(log: OpenLog) -> bool:
    return all(before < after for before, after in pairwise(log.segments.active.offset_index.keys))


def test_every_record_is_found(log: OpenLog) -> None:
    assert log.log_end_offset == 2 * BATCHES
    assert [read_values(log, offset)[0][0] for offset in range(2 * BATCHES)] == list(range(2 * BATCHES))


def test_the_entries_keep_growing(log: OpenLog) -> None:
    for _ in range(BATCHES):
        append(log, make_batch(b"more", b"x" * 50))
    assert len(log.segments.active.offset_index) > BATCHES // FETCH
    assert has_growing_keys(log)


def test_a_truncation_within_a_fetch_removes_its_entry(log: OpenLog) -> None:
    end = 2 * (BATCHES - FETCH // 2)
    log.truncate_to(end)
    for _ in range(BATCHES):
        append(log, make_batch(b"more", b"x" * 50))
    assert has_growing_keys(log)
    assert [read_values(log, offset)[0][0] for offset in range(log.log_end_offset)] == list(range(log.log_end_offset))
