"""The log cleaner: the choice of the log, and changes of a log during its compaction."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.controller.changes import EntityConfigsChanged, TopicConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import StorageFailure
from kbroker.log.cleaning.compaction import Compaction
from kbroker.log.directory import DataDirectory
from kbroker.log.files.checkpoint import CLEANER_CHECKPOINT, read_offsets
from kbroker.log.files.file_slice import FileSlice
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.cleaning.log_cleaner import LogCleaner
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW
from tests.log.compacting import keyed_batch, pairs_of, seal
from tests.replication.moving import Broker, topic_of

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5", "segment.bytes": "2000"}
TABLE = topic_of("table", configs=COMPACTED)


class ThreadClock:
    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return time.monotonic()


class CleaningBroker(Broker):
    def __init__(self, filesystem: FaultyFileSystem, *topics: Any) -> None:
        super().__init__(filesystem, *topics)
        self.cleaner = LogCleaner(self.replicas, self.flusher, self.config, ThreadClock())
        self.worker = self.cleaner.new_worker()

    def fill(self, topic: str = "table", count: int = 20, *, keys: int = 3) -> None:
        partition = self.partition(topic)
        for number in range(count):
            batch = keyed_batch((f"k{number % keys}", f"{number}-" + "x" * 100))
            assert partition.append_internal(batch, NOW).error == ErrorCode.NONE
        seal(partition.log)

    async def clean(self) -> bool:
        return await self.cleaner.clean_dirtiest(self.worker)

    def pairs(self, topic: str = "table") -> list[tuple[int, str, str | None]]:
        return pairs_of(self.partition(topic).log)


@pytest.fixture
def broker() -> CleaningBroker:
    made = CleaningBroker(FaultyFileSystem(), TABLE)
    made.fill()
    return made


def before_the_swap(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Calls a function while the thread writes the cleaned segments."""
    write = Compaction.write_cleaned

    def write_and_act(self: Compaction, group: Any) -> Any:
        cleaned = write(self, group)
        trio.from_thread.run_sync(act)
        return cleaned

    monkeypatch.setattr(Compaction, "write_cleaned", write_and_act)


def left_over(broker: CleaningBroker) -> list[str]:
    filesystem = broker.filesystem
    directories = [
        f"{path}/{name}"
        for path in ("/one", "/two")
        for name in filesystem.list_directories(path)
        if not name.endswith("-delete")
    ]
    return [
        name for path in directories for name in filesystem.list_names(path) if name.endswith((".cleaned", ".swap"))
    ]


async def test_the_dirtiest_log_is_compacted_first_and_how_far_is_written_down(broker: CleaningBroker) -> None:
    assert await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [17, 18, 19]
    broker.fill(count=30)
    broker.add(topic_of("other", number=8, configs=COMPACTED), topic_of("plain", number=9))
    broker.fill("other")
    broker.fill("plain")
    assert await broker.clean()
    assert len(broker.pairs()) > 30
    assert [offset for offset, _, _ in broker.pairs("other")] == [17, 18, 19]
    assert await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [47, 48, 49]
    assert not await broker.clean()
    assert len(broker.pairs("plain")) == 20
    offsets = [read_offsets(broker.filesystem, f"{path}/{CLEANER_CHECKPOINT}") for path in ("/one", "/two")]
    assert {**offsets[0], **offsets[1]} == {("table", 0): 50, ("other", 0): 20}
    stats = broker.cleaner.stats
    assert stats.max_dirty_percent < 50
    assert 0 < stats.recopy_percent < 50
    assert stats.runs > 0
    assert 0 < stats.written_bytes < stats.read_bytes
    assert stats.busy_seconds > 0


async def test_it_goes_on_after_a_restart_where_it_was(broker: CleaningBroker) -> None:
    await broker.clean()
    broker.replicas.close()
    again = CleaningBroker(broker.filesystem, TABLE)
    assert again.partition("table").log.cleaner_offset == 20
    assert not await again.clean()
    again.fill()
    assert await again.clean()
    assert [offset for offset, _, _ in again.pairs()] == [37, 38, 39]


async def test_replaced_segments_leave_the_disk_after_their_delay_and_when_nobody_reads_them() -> None:
    broker = CleaningBroker(FaultyFileSystem(), topic_of("table", configs={**COMPACTED, "file.delete.delay.ms": "0"}))
    broker.fill()
    log = broker.partition("table").log
    piece = log.read(0, 1 << 20)
    assert isinstance(piece, FileSlice)
    content = piece.read()

    def deleted() -> list[str]:
        return [name for name in broker.filesystem.list_names(log.path) if name.endswith(".deleted")]

    await broker.clean()
    assert len(deleted()) > 3
    await broker.clean()
    assert deleted() == [f"{0:020d}.log.deleted"]
    assert piece.read() == content
    piece.release()
    await broker.clean()
    assert deleted() == []


async def test_a_log_that_nobody_has_used_stays_unread(broker: CleaningBroker) -> None:
    broker.replicas.close()
    again = CleaningBroker(broker.filesystem, TABLE)
    assert not await again.clean()
    assert again.partition("table").log_handle.opened is None


async def test_what_is_not_fsynced_is_flushed_for_the_next_time(broker: CleaningBroker) -> None:
    log = broker.partition("table").log
    log.recovery_point = 0
    assert not await broker.clean()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.flusher.run)
        with trio.fail_after(60):
            while log.recovery_point < 20:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert await broker.clean()


async def test_a_topic_that_is_deleted_meanwhile_stays_deleted(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_swap(monkeypatch, lambda: broker.remove(TABLE))
    assert await broker.clean()
    assert broker.table.get("table", 0) is None
    assert not await broker.clean()
    assert broker.cleaner.uncleanable() == []


async def test_a_topic_that_is_made_anew_meanwhile_is_not_touched(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_anew() -> None:
        broker.remove(TABLE)
        broker.add(topic_of("table", number=11, configs=COMPACTED))
        broker.fill(count=2)

    before_the_swap(monkeypatch, make_anew)
    await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [0, 1]
    assert left_over(broker) == []


async def test_a_topic_that_is_deleted_after_the_last_swap_harms_nobody(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = broker.filesystem.sync_directory

    def delete_and_sync(path: str) -> None:
        trio.from_thread.run_sync(broker.remove, TABLE)
        sync(path)

    monkeypatch.setattr(broker.filesystem, "sync_directory", delete_and_sync)
    assert await broker.clean()
    assert broker.cleaner.uncleanable() == []


async def test_a_checkpoint_that_has_no_room_is_written_another_time(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_directory: DataDirectory) -> None:
        raise StorageFailure("no room", is_full=True)

    monkeypatch.setattr(broker.log_dirs, "checkpoint_cleaner", refuse)
    assert not await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [17, 18, 19]


async def test_a_log_that_moves_is_left_alone(broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        before_the_swap(patch, lambda: (broker.begin("table"), None)[1])
        assert await broker.clean()
    assert len(broker.pairs()) == 20
    assert not await broker.clean()
    assert left_over(broker) == []
    move = broker.moves.get("table", 0)
    assert move is not None
    broker.copy(move)
    assert broker.swap(move)
    seal(broker.partition("table").log)
    assert await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [17, 18, 19]


async def test_how_far_a_log_is_compacted_moves_along(broker: CleaningBroker) -> None:
    await broker.clean()
    broker.move("table")
    assert broker.partition("table").log.cleaner_offset == 20
    await broker.log_dirs.checkpoint()
    assert read_offsets(broker.filesystem, f"{broker.directory('table')}/{CLEANER_CHECKPOINT}") == {("table", 0): 20}
    assert read_offsets(broker.filesystem, f"{broker.other('table').path}/{CLEANER_CHECKPOINT}") == {}
    assert [offset for offset, _, _ in broker.pairs()] == [17, 18, 19]


async def test_a_log_that_is_truncated_meanwhile_keeps_what_is_left(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.partition("table").log
    before_the_swap(monkeypatch, lambda: (log.truncate_to(5), None)[1])
    assert await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [0, 1, 2, 3, 4]
    assert log.cleaner_offset is None
    assert left_over(broker) == []


async def test_what_is_written_after_a_cut_is_not_replaced_by_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CleaningBroker(FaultyFileSystem(), topic_of("table", configs={**COMPACTED, "segment.bytes": "100000"}))
    broker.fill()
    log = broker.partition("table").log

    def cut_and_go_on() -> None:
        log.truncate_to(5)
        broker.fill(count=15, keys=1)

    before_the_swap(monkeypatch, cut_and_go_on)
    assert await broker.clean()
    assert [key for offset, key, _value in broker.pairs() if offset >= 5] == ["k0"] * 15
    assert log.cleaner_offset is None


async def test_records_that_are_deleted_meanwhile_stay_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {**COMPACTED, "cleanup.policy": "compact,delete", "file.delete.delay.ms": "0"}
    broker = CleaningBroker(FaultyFileSystem(), topic_of("table", configs=both))
    broker.fill()
    log = broker.partition("table").log

    def delete() -> None:
        assert log.delete_records_before(19) == 19
        log.apply_retention(NOW)

    before_the_swap(monkeypatch, delete)
    assert await broker.clean()
    assert [offset for offset, _, _ in broker.pairs()] == [19]
    assert left_over(broker) == []


async def test_a_segment_that_retention_takes_while_it_is_read_is_nothing_rotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {**COMPACTED, "cleanup.policy": "compact,delete", "file.delete.delay.ms": "0"}
    broker = CleaningBroker(FaultyFileSystem(), topic_of("table", configs=both))
    broker.fill()
    log = broker.partition("table").log
    groups = Compaction.groups

    def delete() -> None:
        assert log.delete_records_before(18) == 18
        log.apply_retention(NOW)

    def groups_of_what_goes(self: Compaction) -> Any:
        found = groups(self)
        trio.from_thread.run_sync(delete)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "groups", groups_of_what_goes)
        assert await broker.clean()
    assert broker.cleaner.uncleanable() == []
    assert [offset for offset, _, _ in broker.pairs()] == [18, 19]


async def test_a_log_that_holds_something_rotten_is_given_up_with_one_line(
    broker: CleaningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{broker.partition('table').log.path}/{0:020d}.log"
    content = bytearray(broker.filesystem.read(path))
    content[200] ^= 1
    broker.filesystem.replace(path, bytes(content))
    assert await broker.clean()
    assert not await broker.clean()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Could not clean the log of table-0. Marking its partition as uncleanable")
    assert "CORRUPT_MESSAGE: CRC is" in line
    ((partition, size),) = broker.cleaner.uncleanable()
    assert (partition.topic, size > 2000) == ("table", True)
    broker.remove(TABLE)
    assert broker.cleaner.uncleanable() == []


async def test_a_bug_costs_a_log_its_compaction_and_nobody_anything_else(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Compaction) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Compaction, "build_map", fail)
    assert await broker.clean()
    assert not await broker.clean()
    (record,) = caplog.records
    assert record.exc_info


async def test_a_full_disk_is_tried_again(broker: CleaningBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.filesystem.free_bytes = 50
    assert not await broker.clean()
    assert "the disk is full" in caplog.text
    assert not broker.log_dirs.gates[broker.directory("table")].is_closed
    broker.filesystem.free_bytes = None
    assert await broker.clean()
    assert len(broker.pairs()) == 3


async def test_a_broken_disk_takes_its_directory_offline(broker: CleaningBroker) -> None:
    broker.filesystem.write_error = errno.EIO
    assert await broker.clean()
    assert broker.log_dirs.gates[broker.directory("table")].is_offline
    broker.filesystem.write_error = None
    assert not await broker.clean()


async def wait_compacted(broker: CleaningBroker, offset: int) -> None:
    with trio.fail_after(30):
        while broker.partition("table").log.cleaner_offset != offset:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("backoff_ms", [1, 600_000])
async def test_it_rests_until_its_time_or_until_a_config_changes(broker: CleaningBroker, backoff_ms: int) -> None:
    broker.config.__dict__["log_cleaner_backoff_ms"] = backoff_ms
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.cleaner.run)
        await wait_compacted(broker, 20)
        broker.fill(count=1)  # far too little
        await wait_all_tasks_blocked()
        assert broker.partition("table").log.cleaner_offset == 20
        changed = TopicConfigsChanged("table", {**COMPACTED, "min.cleanable.dirty.ratio": "0.01"})
        broker.replicas.on_image(Image(), [changed])
        if backoff_ms > 1:
            broker.cleaner.on_image(Image(), [changed])
        await wait_compacted(broker, 21)
        nursery.cancel_scope.cancel()


async def test_a_stop_ends_the_thread_at_its_next_batch(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = trio.Event()
    build_map = Compaction.build_map

    def build_for_ever(self: Compaction) -> int:
        trio.from_thread.run_sync(has_begun.set)
        while True:
            build_map(self)

    monkeypatch.setattr(Compaction, "build_map", build_for_ever)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.cleaner.run)
            await has_begun.wait()
            nursery.cancel_scope.cancel()
    assert len(broker.pairs()) == 20


async def test_it_may_be_turned_off(broker: CleaningBroker) -> None:
    broker.config.__dict__["log_cleaner_enable"] = False
    await broker.cleaner.run()
    assert len(broker.pairs()) == 20


async def test_as_many_logs_as_configured_are_compacted_at_a_time(
    broker: CleaningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.add(topic_of("other", number=8, configs=COMPACTED))
    broker.fill("other")
    build_map = Compaction.build_map
    begun: list[Compaction] = []
    may_go_on = threading.Event()

    def build_together(self: Compaction) -> int:
        trio.from_thread.run_sync(begun.append, self)
        assert may_go_on.wait(60)
        return build_map(self)

    monkeypatch.setattr(Compaction, "build_map", build_together)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.cleaner.run)
        with trio.fail_after(60):
            while not begun:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked(0.01)
            assert len(begun) == 1
            broker.config.__dict__["log_cleaner_threads"] = 2
            broker.cleaner.on_image(Image(), [EntityConfigsChanged("brokers/<default>", {})])
            while len(begun) < 2:
                await trio.lowlevel.checkpoint()
            may_go_on.set()
            while broker.partition("other").log.cleaner_offset != 20:
                await trio.lowlevel.checkpoint()
        await wait_compacted(broker, 20)
        nursery.cancel_scope.cancel()
    assert [offset for offset, _, _ in broker.pairs("other")] == [17, 18, 19]
    # Each has its share of the memory, as in Kafka.
    assert [compaction._limits.dedupe_buffer_size for compaction in begun[:2]] == [128 << 20, 64 << 20]
