"""Compaction in a process: the same result as in a thread, the same failures, and an end with the broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.errors import StorageFailure
from kbroker.log.cleaning.compaction import CompactionPlan, Limits
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.log.log_compaction import cleanable_of, plan_compaction, replace_segments
from kbroker.log.open_log import OpenLog
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.cleaning.cleaner_pace import IoThrottle
from kbroker.replication.cleaning.cleaner_worker import IDLE_SECONDS, CleanerWorker, ProcessLost
from kbroker.testing.broker_clock import BrokerClock
from kbroker.thread_pace import ThreadStopped
from tests.log.batches import NOW, append, make_marker, open_log
from tests.log.compacting import SMALL, compact, keyed_batch, pairs_of, seal, segments_of


def new_worker() -> CleanerWorker:
    clock = SystemClock()
    return CleanerWorker(clock, IoThrottle(clock, lambda: 1e308), min_process_bytes=0)


@pytest.fixture
def worker() -> Iterator[CleanerWorker]:
    worker = new_worker()
    yield worker
    worker.end_process()


def filled(path: Path) -> OpenLog:
    log = open_log(OsFileSystem(), str(path), SMALL)
    for number in range(12):
        append(log, keyed_batch((f"k{number % 4}", f"{number}" + "x" * 100)))
    append(log, keyed_batch(("k0", "aborted"), producer_id=3, transactional=True))
    append(log, make_marker(3, commit=False), internal=True)
    append(log, keyed_batch(("last", "one")))
    append(log, keyed_batch(("k1", None)))
    seal(log)
    return log


def plan_of(log: OpenLog) -> CompactionPlan:
    return plan_compaction(log, cleanable_of(log, NOW), NOW, Limits())


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


def test_a_process_writes_what_a_thread_would_write(tmp_path: Path, worker: CleanerWorker) -> None:
    log, same = filled(tmp_path / "t-0"), filled(tmp_path / "same-0")
    compact(same)
    compaction = worker.begin(plan_of(log))
    log.cleaner_offset = compaction.build_map()
    for group in compaction.groups():
        assert replace_segments(log, segments_of(log, group), compaction.write_cleaned(group), NOW)
    assert (log.cleaner_offset, pairs_of(log)) == (same.cleaner_offset, pairs_of(same))
    assert files_of(tmp_path / "t-0") == files_of(tmp_path / "same-0")
    assert compaction.written_bytes == sum(segment.size for segment in list(log.segments)[:-1])
    assert 0 < compaction.map_use <= 1
    for opened in (log, same):
        opened.close()


def test_failures_of_the_process_are_those_of_the_log(tmp_path: Path, worker: CleanerWorker) -> None:
    log = filled(tmp_path / "t-0")
    plan = plan_of(log)
    path = Path(plan.sources[0].path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"?" + content[101:])
    with pytest.raises(InvalidBatch, match="CORRUPT_MESSAGE: CRC is"):
        worker.begin(plan).build_map()
    path.write_bytes(content)
    compaction = worker.begin(plan)
    compaction.build_map()
    (group, *_) = compaction.groups()
    (tmp_path / "t-0" / f"{0:020d}.log.cleaned").mkdir()  # so that the file cannot be created
    with pytest.raises(StorageFailure) as failure:
        compaction.write_cleaned(group)
    assert not failure.value.is_full
    with pytest.raises(RuntimeError, match="AssertionError: write_cleaned before build_map"):
        worker.begin(plan).write_cleaned(group)
    log.close()


def test_a_process_that_dies_costs_one_round(tmp_path: Path, worker: CleanerWorker) -> None:
    log = filled(tmp_path / "t-0")
    compaction = worker.begin(plan_of(log))
    end_offset = compaction.build_map()
    assert worker._process is not None
    worker._process.kill()
    with pytest.raises(ProcessLost):
        compaction.groups()
    assert worker.begin(plan_of(log)).build_map() == end_offset
    log.close()


def test_a_stop_ends_the_process_and_the_round(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    worker = new_worker()
    compaction = worker.begin(plan_of(log))
    worker.stop()
    with pytest.raises(ThreadStopped):
        compaction.build_map()
    with pytest.raises(ThreadStopped):
        worker.begin(plan_of(log))
    assert worker._process is None
    log.close()


async def test_a_process_without_work_ends_after_a_minute(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    clock = BrokerClock()
    worker = CleanerWorker(clock, IoThrottle(clock, lambda: 1e308), min_process_bytes=0)
    worker.begin(plan_of(log)).build_map()
    await clock.advance(int(IDLE_SECONDS * 1000) - 30_000)
    worker.end_idle_process()
    process = worker._process
    assert process is not None
    await clock.advance(30_000)
    worker.end_idle_process()
    assert process._process.returncode is not None
    log.close()


@pytest.mark.parametrize("bytes_per_second", [1e308, 100_000.0])
def test_a_process_reports_what_it_reads_and_writes_to_the_throttle_of_all_workers(
    tmp_path: Path, bytes_per_second: float
) -> None:
    log = filled(tmp_path / "t-0")
    plan = plan_of(log)
    seen: list[int] = []

    class CountingThrottle(IoThrottle):
        def add(self, size: int) -> None:
            seen.append(size)

    clock = SystemClock()
    worker = CleanerWorker(clock, CountingThrottle(clock, lambda: bytes_per_second), min_process_bytes=0)
    compaction = worker.begin(plan)
    compaction.build_map()
    assert max(seen) <= max(bytes_per_second / 50, max(source.size for source in plan.sources))
    assert sum(seen) == sum(source.size for source in plan.sources)
    seen.clear()
    (group, *_) = compaction.groups()
    compaction.write_cleaned(group)
    assert sum(seen) == sum(source.size for source in group) + compaction.written_bytes
    worker.end_process()
    log.close()


BROKER = """
import sys
from kbroker.replication.cleaning.cleaner_worker import _CleanerProcess
process = _CleanerProcess()
print(process._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_process_ends_with_its_broker() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        assert broker.stderr is not None
        assert int(broker.stdout.readline()) > 0
        broker.kill()
        assert broker.stderr.read() == b""  # both ends of the pipe: returns when the process has ended too
