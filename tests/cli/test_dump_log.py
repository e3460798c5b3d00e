"""`kbroker dump-log`: contents of partition files, also of corrupt ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli.main import main
from kbroker.protocol.records import EndTransactionMarker, Record, build_batch, build_end_transaction_batch

TIME = 1_700_000_000_000

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["dump-log", *map(str, arguments)])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0" / "00000000000000000007.log"
    path.parent.mkdir()
    records = [Record(7, TIME, b"k", b"v", (("h", None),)), Record(8, TIME + 1, None, b"\xff")]
    plain = build_batch(records, codec=4, leader_epoch=3)
    marker = build_end_transaction_batch(
        EndTransactionMarker(True, 5), producer_id=9, producer_epoch=1, timestamp=TIME + 2, base_offset=9
    )
    path.write_bytes(plain + marker)
    return path


def test_batches_are_shown_in_kafkas_words(run: Run, segment: Path) -> None:
    code, out, err = run(segment)
    assert (code, err) == (0, "")
    dumping, start, first, second = out.splitlines()
    assert dumping == f"Dumping {segment}"
    assert start == "Log starting offset: 7"
    assert first.startswith("baseOffset: 7 lastOffset: 8 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 ")
    assert f"CreateTime: {TIME + 1} " in first
    assert "compresscodec: zstd" in first
    assert first.endswith("isvalid: true")
    assert "isControl: true" in second


def test_records_are_shown_with_print_data_log(run: Run, segment: Path) -> None:
    lines = run(segment, "--print-data-log")[1].splitlines()
    assert lines[3] == (
        f"| offset: 7 CreateTime: {TIME} keySize: 1 valueSize: 1 sequence: -1 headerKeys: [h] key: k payload: v"
    )
    assert lines[4].endswith("keySize: -1 valueSize: 1 sequence: -1 headerKeys: [] payload: \ufffd")
    assert lines[6].endswith("endTxnMarker: COMMIT coordinatorEpoch: 5")
    assert "key: k" not in run(segment, "--deep-iteration")[1]
    assert "| key: k payload: v" in run(segment, "--print-data-log", "--skip-record-metadata")[1].splitlines()


def test_json_has_everything(run: Run, segment: Path) -> None:
    first, second = map(json.loads, run(segment, "--print-data-log", "--json")[1].splitlines())
    assert (first["base_offset"], first["codec"], first["valid"], first["leader_epoch"]) == (7, "zstd", True, 3)
    assert first["records"][1]["value"] == {"base64": "/w=="}
    assert (second["control"], second["position"]) == (True, first["size"])


def test_a_reader_that_ends_is_not_a_file_that_cannot_be_read(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes() * 500)  # more than fits into a pipe
    command = [sys.executable, "-m", "kbroker", "dump-log", str(segment), "--print-data-log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"Dumping")
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_a_directory_dumps_all_its_segments(run: Run, segment: Path) -> None:
    segment.with_name("00000000000000000000.log").touch()
    out = run(segment.parent)[1]
    assert [line for line in out.splitlines() if line.startswith("Log")] == [
        "Log starting offset: 0",
        "Log starting offset: 7",
    ]


def test_corrupt_batches_are_shown_and_do_not_stop_the_dump(run: Run, segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[70] ^= 1
    segment.write_bytes(content + b"garbage")
    code, out, _ = run(segment, "--print-data-log")
    assert code == 0
    lines = out.splitlines()
    assert lines[2].endswith("isvalid: false")
    assert "isvalid: true" in out
    assert lines[-1] == f"Found 7 invalid bytes at the end of {segment.name}"
    batches = [json.loads(line) for line in run(segment, "--json")[1].splitlines()]
    assert [batch.get("valid") for batch in batches] == [False, True, None]
    assert "problem" in batches[0]


def test_max_bytes_limits_the_dump(run: Run, segment: Path) -> None:
    size = segment.stat().st_size
    assert run(segment, "--max-bytes", size - 1)[1].count("baseOffset") == 1
    assert run(segment, "--max-bytes", size)[1].count("baseOffset") == 2


def test_indexes_are_shown_up_to_their_preallocated_rest(run: Run, tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(b"".join(number.to_bytes(4, "big") for number in (5, 4096, 9, 8192, 0, 0, 0, 0)))
    assert run(index)[1].splitlines()[1:] == ["offset: 105 position: 4096", "offset: 109 position: 8192"]
    time_index = tmp_path / "00000000000000000100.timeindex"
    time_index.write_bytes(TIME.to_bytes(8, "big") + (5).to_bytes(4, "big") + bytes(12))
    assert run(time_index, "--json")[1] == json.dumps({"timestamp": TIME, "offset": 105}) + "\n"


def test_a_file_that_is_not_a_partition_file_is_one_line(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.touch()
    odd = tmp_path / "notes.log"
    odd.touch()
    damaged = tmp_path / "00000000000000000000.snapshot"
    damaged.write_bytes(b"x" * 30)
    for path in (other, odd, tmp_path, damaged):
        if path == tmp_path:
            odd.unlink()
        code, _, err = run(path)
        assert (code, err.count("\n")) == (1, 1), path
    assert run(tmp_path / "absent")[0] == 2
