"""Moves of replicas between data directories: no record is lost, whatever happens during the move."""

from __future__ import annotations

import errno

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.errors import StorageFailure
from kbroker.protocol.error_codes import ErrorCode
from tests.log.batches import NOW, append_as_leader, make_batch, read_values
from tests.log.crashing import Crashed, CrashingFileSystem
from tests.replication.moving import Broker, closed, topic_of

ORDERS = topic_of("orders")
SIZE = len(make_batch(b"10"))
VALUES = [b"%d" % number for number in range(10, 50)]


@pytest.fixture
def filesystem() -> CrashingFileSystem:
    return CrashingFileSystem()


@pytest.fixture
def broker(filesystem: CrashingFileSystem) -> Broker:
    made = Broker(filesystem, ORDERS)
    made.write(*VALUES)
    return made


def test_new_partitions_go_where_the_fewest_are(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem, topic_of("a", 3), paths=("/one", "/two", "/three"))
    assert {broker.directory("a", index) for index in range(3)} == {"/one", "/two", "/three"}
    broker.add(topic_of("b", 2, number=8))
    assert broker.directory("b", 0) != broker.directory("b", 1)


def test_new_partitions_go_to_no_directory_that_is_offline(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem)
    broker.log_dirs.gates["/one"].close(StorageFailure("broken"))
    broker.add(topic_of("a", 3))
    assert {broker.directory("a", index) for index in range(3)} == {"/two"}


def test_a_partition_goes_where_somebody_wanted_it(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem, topic_of("a", 1))
    for index in range(3):
        broker.log_dirs.prefer("b", index, broker.directories[0])
    broker.add(topic_of("b", 3, number=8))
    assert {broker.directory("b", index) for index in range(3)} == {"/one"}


def test_wishes_for_partitions_that_never_come_are_not_kept_for_ever(broker: Broker) -> None:
    for number in range(20_000):
        broker.log_dirs.prefer(f"topic-{number}", 0, broker.directories[0])
    assert len(broker.log_dirs._preferred) == 10_000


def test_a_partition_moves_and_goes_on_there(broker: Broker) -> None:
    assert broker.directory() == "/one"
    move = broker.begin()
    broker.copy(move, 3)
    (future,) = broker.moves.futures_in(broker.directories[1])
    assert (future.topic, future.partition, future.size_bytes == 12 * SIZE, future.offset_lag) == (
        "orders",
        0,
        True,
        28,
    )
    broker.write(b"while it moves")
    broker.copy(move)
    broker.write(b"at the end")
    assert broker.swap(move)
    assert broker.directory() == "/two"
    assert broker.values() == [*VALUES, b"while it moves", b"at the end"]
    broker.write(b"there")
    assert broker.values()[-1] == b"there"
    assert broker.partition().high_watermark == 43
    assert broker.moves.futures_in(broker.directories[1]) == []
    assert broker.names() == {"/one": ["orders-0-delete"], "/two": ["orders-0"]}
    broker.directories[0].purge_deleted()
    assert broker.names() == {"/one": [], "/two": ["orders-0"]}


def test_a_response_that_reads_from_the_old_place_is_served_from_there(broker: Broker) -> None:
    slice_ = broker.partition().read(0, 100, 40, is_first=True)
    assert slice_ is not None
    assert not isinstance(slice_, ErrorCode)
    before = slice_.read()
    broker.move()
    broker.directories[0].purge_deleted()
    assert slice_.is_valid()
    assert slice_.read() == before
    slice_.release()
    broker.directories[0].purge_deleted()
    assert broker.names()["/one"] == []


def test_waiting_fetches_count_on_where_they_were(broker: Broker) -> None:
    seen: list[int] = []

    class Waiter:
        def on_visible(self, size: int) -> None:
            seen.append(size)

        def finish(self) -> None:
            raise AssertionError

    broker.partition().fetch_waiters.add(Waiter())
    broker.move()
    batch = make_batch(b"x")
    broker.partition().append_internal(batch, NOW)
    assert seen == [len(batch)]


def test_what_is_known_beside_the_records_moves_along(broker: Broker) -> None:
    log = broker.partition().log
    log.stage(make_batch(b"from 5", producer_id=5, epoch=1), 3, NOW)
    log.commit()
    log.set_high_watermark(log.log_end_offset)
    broker.write(b"more")
    log.roll(NOW)
    log.delete_records_before(41)
    producers, epochs = dict(log.producers.entries), list(log.leader_epochs.entries)
    broker.move()
    log = broker.partition().log
    assert (log.log_start_offset, log.log_end_offset) == (41, 42)
    assert dict(log.producers.entries) == producers
    assert list(log.leader_epochs.entries) == epochs
    broker.write(b"next")
    assert read_values(log) == [(41, b"more"), (42, b"next")]


def test_a_log_that_begins_within_a_batch_keeps_its_start(broker: Broker) -> None:
    log = broker.partition().log
    append_as_leader(log, make_batch(b"a", b"b", b"c"), 0, NOW)
    log.set_high_watermark(log.log_end_offset)
    log.delete_records_before(41)
    broker.move()
    assert broker.partition().log.log_start_offset == 41
    assert broker.values()[-2:] == [b"b", b"c"]


def test_a_log_that_ends_beyond_its_last_batch_ends_there_still(broker: Broker) -> None:
    broker.partition().log.roll(NOW, base_offset=50)
    broker.partition().log.log_end_offset = 50
    broker.partition().log_handle.commit_all()
    broker.move()
    broker.write(b"next")
    assert read_values(broker.partition().log, 50) == [(50, b"next")]


def test_an_empty_partition_moves(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem, ORDERS)
    broker.move()
    broker.write(b"first")
    assert (broker.directory(), broker.values()) == ("/two", [b"first"])


def test_what_is_deleted_while_it_is_copied_makes_the_move_begin_anew(broker: Broker) -> None:
    move = broker.begin()
    broker.copy(move, 3)
    log = broker.partition().log
    log.delete_records_before(30)
    assert move.next_slice(300) is ErrorCode.OFFSET_OUT_OF_RANGE
    move.start_again()
    broker.copy(move)
    assert broker.swap(move)
    assert broker.values() == VALUES[30:]


def test_the_swap_waits_until_little_is_left(broker: Broker) -> None:
    move = broker.begin()
    broker.write(*(b"x" * 200_000 for _ in range(8)))
    assert not broker.swap(move)
    broker.copy(move, size=10**6)
    assert broker.swap(move)
    assert len(broker.values()) == 48


def test_what_is_on_the_disk_has_to_be_there_in_the_new_place_too(broker: Broker) -> None:
    move = broker.begin()
    broker.copy(move)
    move.future.flush(NOW)
    broker.write(b"durable")
    broker.partition().log.flush(NOW)
    assert not broker.moves.try_swap(move, NOW, is_last_try=False)
    assert broker.moves.try_swap(move, NOW, is_last_try=True)
    assert broker.partition().log.recovery_point == 41


def test_to_where_it_is_or_elsewhere_gives_a_move_up(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem, ORDERS, paths=("/one", "/two", "/three"))
    broker.write(*VALUES)
    one, two, three = broker.directories
    moves, partition = broker.moves, broker.partition()
    for target in (two, two, three, one):
        assert moves.begin(partition, target) == ErrorCode.NONE
        assert [directory.path for directory in broker.directories if moves.futures_in(directory)] == (
            [] if target is one else [target.path]
        )
    assert broker.values() == VALUES


def test_a_topic_that_is_deleted_takes_its_move_along(broker: Broker) -> None:
    move = broker.begin()
    broker.copy(move, 3)
    broker.remove(ORDERS)
    assert move.is_over
    broker.moves.drop(move)
    assert closed(move.future)
    for directory in broker.directories:
        directory.purge_deleted()
    assert broker.names() == {"/one": [], "/two": []}


def test_a_topic_whose_name_is_too_long_stays(filesystem: CrashingFileSystem) -> None:
    name = "t" * 240
    broker = Broker(filesystem, topic_of(name))
    assert broker.moves.begin(broker.partition(name), broker.other(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("loses_memory", [False, True], ids=["killed", "power lost"])
def test_nothing_is_lost_by_a_crash_at_any_step(loses_memory: bool) -> None:
    steps = 1
    arrived = []
    while True:
        filesystem = CrashingFileSystem()
        broker = Broker(filesystem, ORDERS)
        broker.write(*VALUES[:30])
        broker.partition().log.roll(NOW)
        broker.write(*VALUES[30:])
        broker.partition().log.flush(NOW)
        filesystem.changes, filesystem.crash_at = 0, steps
        try:
            broker.move()
            broker.partition().log.flush(NOW)
            broker.write(b"after")
            broker.partition().log.flush(NOW)
            written = [*VALUES, b"after"]
        except Crashed:
            written = VALUES
        filesystem.crash_at = None
        (filesystem.crash if loses_memory else filesystem.kill)()
        again = Broker(filesystem, ORDERS)
        trio.run(again.replicas.recover)
        assert again.values()[: len(written)] == written, f"after {steps} steps"
        assert sum("orders-0" in names for names in again.names().values()) == 1
        arrived.append(again.directory())
        if filesystem.changes < steps:
            break
        again.moves.resume(again.table.replica)
        for move in again.moves:
            again.copy(move)
            assert again.swap(move)
            assert (again.directory(), again.values()[: len(written)]) == ("/two", written)
        steps += 1
    assert steps > 10
    assert set(arrived) == {"/one", "/two"}


def test_of_two_logs_of_a_partition_the_longer_one_stays(filesystem: CrashingFileSystem, broker: Broker) -> None:
    broker.partition().log.flush(NOW)
    filesystem.kill()
    other = Broker(filesystem, ORDERS, paths=("/two",))
    other.write(*VALUES[:10])
    other.partition().log.flush(NOW)
    filesystem.kill()
    assert Broker(filesystem, ORDERS, paths=("/two", "/one")).directory() == "/one"
    assert sorted(broker.names()["/two"]) == ["orders-0-delete"]


async def test_the_mover_moves_while_producers_write(broker: Broker) -> None:
    second = topic_of("second", number=9)
    broker.add(second)
    broker.write(*VALUES, topic="second")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.mover.run)
        await wait_all_tasks_blocked()
        for topic in ("orders", "second"):
            broker.begin(topic)
        for number in range(50):
            broker.write(b"more %d" % number)
            await trio.lowlevel.checkpoint()
        await broker.mover.wait_idle()
        nursery.cancel_scope.cancel()
    assert (broker.directory("orders"), broker.directory("second")) == ("/two", "/one")
    assert broker.values() == [*VALUES, *(b"more %d" % number for number in range(50))]
    assert broker.values("second") == VALUES


async def test_a_partition_that_acknowledges_what_is_on_the_disk_moves_under_load(
    filesystem: CrashingFileSystem,
) -> None:
    broker = Broker(filesystem, topic_of("orders", configs={"flush.messages": "1"}))
    committed: list[int] = []
    is_committed = trio.Event()

    def note(code: int) -> None:
        committed.append(code)
        if len(committed) == 200:
            is_committed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.mover.run)
        nursery.start_soon(broker.flusher.run)
        for number in range(200):
            broker.write(b"%d" % number)
            broker.partition().when_committed(number, note)
            if number == 50:
                broker.begin()
            await trio.lowlevel.checkpoint()
        await broker.mover.wait_idle()
        await is_committed.wait()
        nursery.cancel_scope.cancel()
    assert committed == [0] * 200
    assert broker.directory() == "/two"
    filesystem.crash()
    again = Broker(filesystem, topic_of("orders", configs={"flush.messages": "1"}))
    await again.replicas.recover()
    assert again.values() == [b"%d" % number for number in range(200)]


def test_what_was_fsynced_on_the_way_is_acknowledged_though_nothing_is_left_to_fsync(
    filesystem: CrashingFileSystem,
) -> None:
    broker = Broker(filesystem, topic_of("orders", configs={"flush.messages": "1"}))
    codes: list[int] = []
    broker.write(b"one")
    broker.partition().when_committed(0, codes.append)
    move = broker.begin()
    broker.copy(move)
    move.future.flush(NOW)
    assert broker.swap(move)
    assert codes == []
    assert broker.partition().begin_flush() is None
    assert codes == [0]


@pytest.mark.parametrize("fault", ["free_bytes", "write_error", "read_error"])
async def test_a_move_that_the_disk_refuses_leaves_the_partition_where_it_is(
    filesystem: CrashingFileSystem, broker: Broker, fault: str
) -> None:
    broker.begin()
    setattr(filesystem, fault, 0 if fault == "free_bytes" else errno.EIO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.mover.run)
        await broker.mover.wait_idle()
        nursery.cancel_scope.cancel()
    setattr(filesystem, fault, None)
    assert (broker.directory(), broker.values()) == ("/one", VALUES)
    broker.write(b"goes on")


async def test_a_cancelled_move_leaves_nothing_behind(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.mover.run)
        move = broker.begin()
        broker.moves.cancel(move.key)
        await broker.mover.wait_idle()
        nursery.cancel_scope.cancel()
    assert closed(move.future)
    assert broker.names() == {"/one": ["orders-0"], "/two": ["orders-0-delete"]}


def test_a_log_that_is_cut_on_its_way_is_copied_anew(filesystem: CrashingFileSystem) -> None:
    broker = Broker(filesystem, ORDERS)
    broker.write(b"a", b"b", b"c")
    move = broker.begin()
    broker.copy(move)
    broker.partition().log.truncate_to(1)
    broker.write(b"other", b"history", b"here")
    assert move.next_slice(300) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not broker.swap(move)
    move.start_again()
    broker.copy(move)
    assert broker.swap(move)
    assert broker.values() == [b"a", b"other", b"history", b"here"]
