"""Segment files to Arrow without Spark: the same records as one at a time, pruned by indexes, CRC checked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import UserError
from kbroker.protocol.compression import Codec
from kbroker.protocol.record_batch import InvalidBatch, iter_headers
from kbroker.protocol.record_walk import append_starts
from kbroker.protocol.records import Record, build_batch, iter_records
from kbroker.testing import Broker
from tests.pipeline.any_records import records

pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("pyarrow", reason="needs pyarrow")

from kbroker.pipeline.arrow.decoding import RowFilter, decode_batches, to_arrow
from kbroker.pipeline.segment_files import SegmentSelection, find_segments, read_segment

TIME = 1_700_000_000_000


def rows_of(batch: Any) -> list[Record]:
    rows = batch.to_pylist()
    return [
        Record(
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row.get("headers") or ()),
        )
        for row in rows
    ]


@given(st.lists(st.tuples(st.lists(records, max_size=8), st.sampled_from(list(Codec))), min_size=1, max_size=4))
def test_columns_have_what_single_records_have(batches: list[tuple[list[Record], Codec]]) -> None:
    buffer, offset = bytearray(), 100
    for found, codec in batches:
        # Timestamps that Python's datetime can hold.
        placed = [
            record._replace(offset=offset + 2 * number, timestamp=TIME + record.timestamp % 10**9)
            for number, record in enumerate(found)
        ]
        buffer += build_batch(placed, base_offset=offset, last_offset_delta=2 * len(found), codec=codec)
        offset += 2 * len(found) + 1
    data = bytes(buffer)
    headers = list(iter_headers(data))
    batch = to_arrow(decode_batches(data, headers), "t", 3, has_headers=True)
    expected = [record for position, _ in headers for record in iter_records(data, position)]
    assert rows_of(batch) == expected
    assert set(batch.column("topic").to_pylist()) <= {"t"}
    assert set(batch.column("partition").to_pylist()) <= {3}


def test_log_append_time_is_the_time_of_all_records_of_a_batch() -> None:
    data = bytes(build_batch([Record(0, 5, None, b"x"), Record(1, 6, None, b"y")], log_append_time=TIME))
    batch = to_arrow(decode_batches(data, list(iter_headers(data))), "t", 0, has_headers=False)
    assert [record.timestamp for record in rows_of(batch)] == [TIME, TIME]
    assert batch.column("timestampType").to_pylist() == [1, 1]


def test_malformed_records_are_refused() -> None:
    data = bytearray(build_batch([Record(0, 0, b"key", b"value")] * 2))
    good = bytes(data)
    for position in range(61, len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            data[position] = value
            broken = bytes(data)
            try:
                decoded = decode_batches(broken, list(iter_headers(broken)))
                to_arrow(decoded, "t", 0, has_headers=True)
            except InvalidBatch:
                pass
        data[position] = good[position]


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_the_walk_finds_where_records_begin(size: int) -> None:
    data = bytes(build_batch([Record(number, 0, None, b"v" * size) for number in range(3)]))[61:]
    starts: list[int] = []
    append_starts(starts, data, 0, len(data), 3)
    assert starts == [number * len(data) // 3 for number in range(3)]
    for wrong in ((len(data) - 1, 3), (len(data), 2), (len(data), 4)):
        with pytest.raises(InvalidBatch):
            append_starts([], data, 0, *wrong)


ALL = SegmentSelection()


def read_all(directory: Path, selection: SegmentSelection = ALL, **options: Any) -> list[Record]:
    found = []
    for task in find_segments(str(directory), selection):
        for batch in read_segment(task, has_headers=True, **options):
            found += rows_of(batch)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A data directory with a topic of 8 segments: 40 batches of 25 records, one second apart."""
    from confluent_kafka import Producer

    with Broker(topics={"t": 1, "other": 1}, data_dir=tmp_path / "data") as broker:
        broker.create_topic("many", 1, segment_bytes=16384, index_interval_bytes=1024)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for number in range(1000):
            when = TIME + 1000 * number
            producer.produce("many", key=b"%d" % number, value=b"v" * 100, timestamp=when)
            if number % 25 == 24:
                assert producer.flush(60) == 0
        producer.produce("t", value=b"1", headers=[("h", b"x")], timestamp=TIME)
        assert producer.flush(60) == 0
    return tmp_path / "data"


def test_all_records_of_all_segments_are_read(log: Path) -> None:
    selection = SegmentSelection(topics=("many",))
    tasks = find_segments(str(log), selection)
    assert len(tasks) > 5
    assert len({task.path for task in tasks}) == len(tasks)
    found = read_all(log, selection, chunk_bytes=2000)
    assert [(record.offset, record.key, record.timestamp) for record in found] == [
        (number, b"%d" % number, TIME + 1000 * number) for number in range(1000)
    ]
    (record,) = read_all(log, SegmentSelection(topics=("t",)))
    assert record == Record(0, TIME, None, b"1", (("h", b"x"),))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (RowFilter(start_offset=610, end_offset=633), range(610, 633)),
        (RowFilter(start_offset=990), range(990, 1000)),
        (RowFilter(end_offset=3), range(3)),
        (RowFilter(start_offset=5000), range(0)),
        (RowFilter(start_ms=TIME + 800_500), range(801, 1000)),
        (RowFilter(start_ms=TIME + 400_000, end_ms=TIME + 410_000), range(400, 410)),
        (RowFilter(end_offset=0), range(0)),
    ],
)
def test_ranges_are_exact_and_read_only_what_they_need(log: Path, limits: RowFilter, expected: range) -> None:
    whole = sum(task.end - task.start for task in find_segments(str(log), SegmentSelection(topics=("many",))))
    selection = SegmentSelection(topics=("many",), filter=limits)
    assert [record.offset for record in read_all(log, selection)] == list(expected)
    planned = sum(task.end - task.start for task in find_segments(str(log), selection))
    if limits.end_ms is None:
        assert planned <= whole * (len(expected) + 120) / 1000


def test_ranges_are_exact_without_indexes(log: Path) -> None:
    for path in (log / "many-0").glob("*index"):
        path.unlink()
    limits = RowFilter(start_offset=610, end_offset=633, start_ms=TIME + 612_000)
    selection = SegmentSelection(topics=("many",), filter=limits)
    assert [record.offset for record in read_all(log, selection)] == list(range(612, 633))


def test_topics_are_chosen_by_name_by_pattern_or_all(log: Path) -> None:
    def topics(selection: SegmentSelection) -> set[str]:
        return {task.topic for task in find_segments(str(log), selection)}

    assert topics(SegmentSelection()) == {"many", "t"}  # "other" has no records
    assert topics(SegmentSelection(pattern="ma.*")) == {"many"}
    assert topics(SegmentSelection(topics=("t",))) == {"t"}
    with pytest.raises(UserError, match="has no topic absent"):
        topics(SegmentSelection(topics=("t", "absent")))


def test_directories_that_are_not_data_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read the data directory"):
        find_segments(str(tmp_path / "absent"), SegmentSelection())
    with pytest.raises(UserError, match="has no partitions"):
        find_segments(str(tmp_path), SegmentSelection())


def first_segment(log: Path) -> Path:
    return min((log / "many-0").glob("*.log"))


def test_a_flipped_bit_is_found_and_named(log: Path) -> None:
    path = first_segment(log)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"00000\.log is damaged at position 0: CORRUPT_MESSAGE: CRC"):
        read_all(log, SegmentSelection(topics=("many",)))


def test_a_segment_that_is_cut_off_while_it_is_read_is_named(log: Path) -> None:
    (task, *_) = find_segments(str(log), SegmentSelection(topics=("many",)))
    path = first_segment(log)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(UserError, match="the file ends within a batch"):
        list(read_segment(task))
    path.unlink()
    with pytest.raises(UserError, match="does not exist any more"):
        list(read_segment(task))


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0" * 70, b"\0\0\0\0\0\0\1\2\3", b""])
def test_the_last_segment_may_end_with_space_or_with_half_a_batch(log: Path, tail: bytes) -> None:
    path = max((log / "many-0").glob("*.log"))
    with open(path, "ab") as file:
        file.write(tail)
    assert len(read_all(log, SegmentSelection(topics=("many",)))) == 1000


@pytest.fixture
def transactions(tmp_path: Path) -> Callable[..., Path]:
    """Writes committed, aborted and open transactions of several producers, mixed; returns a copy of the directory."""
    from confluent_kafka import Producer

    def write(**configs: Any) -> Path:
        with Broker(topics={"x": 1}, data_dir=tmp_path / "data") as broker:
            broker.create_topic("t", 1, **configs)
            producers = []
            for name in "abc":
                producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "linger.ms": 0})
                producer.init_transactions(60)
                producers.append(producer)
            for turn in range(6):
                for producer in producers:
                    producer.begin_transaction()
                for part in range(3):
                    for name, producer in zip("abc", producers, strict=True):
                        producer.produce("t", value=f"{name}{turn}{part}", key=b"k" * 100)
                        assert producer.flush(60) == 0
                for name, producer in zip("abc", producers, strict=True):
                    if name == "c" and turn == 5:
                        continue  # stays open
                    if (name, turn % 2) == ("b", 0):
                        producer.abort_transaction(60)
                    else:
                        producer.commit_transaction(60)
            # A copy of a directory that is in use: the last segment has indexes that are not written yet.
            shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*.db*"))
        return tmp_path / "copy"

    return write


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1000])
@pytest.mark.parametrize("has_snapshots", [True, False])
def test_committed_transactions_only_on_request(
    transactions: Callable[..., Path], segment_bytes: int, has_snapshots: bool
) -> None:
    copy = transactions(segment_bytes=segment_bytes)
    if not has_snapshots:
        for path in (copy / "t-0").glob("*.snapshot"):
            path.unlink()
    everything = [record.value.decode() for record in read_all(copy) if record.value is not None]
    assert len(everything) == 6 * 3 * 3
    committed = [
        record.value.decode() for record in read_all(copy, SegmentSelection(read_committed=True)) if record.value
    ]
    # Up to the first record of the open transaction, without what "b" aborted.
    stable = everything[: everything.index("c50")]
    assert committed == [value for value in stable if not (value[0] == "b" and value[1] in "024")]
