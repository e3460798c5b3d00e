"""Transactions over a partition whose high watermark moves by hand: what waits for what, and what is tried again."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.controller.image import NO_LEADER
from kbroker.coordinator.marker_delivery import MarkerDelivery
from kbroker.coordinator.marker_requests import OutgoingMarker
from kbroker.coordinator.markers import Markers, TransactionEnd
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.coordinator.transaction_driver import TransactionDriver
from kbroker.log.append_result import AppendResult
from kbroker.names import CONSUMER_OFFSETS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.records import read_end_transaction_marker
from kbroker.transaction.result import TransactionResult
from kbroker.transaction.shard import TransactionShard
from kbroker.transaction.states import TransactionState
from tests.coordinator.harness import NOW_MS, FakePartition, FakeTimers, StillClock

ID = "pay"
HERE = 1
THERE = 2


class LedPartition(FakePartition):
    leader_epoch = 3


class FakeGroups:
    """Their markers, and the error that they answer with."""

    def __init__(self) -> None:
        self.error = ErrorCode.NONE
        self.ended: list[tuple[int, int, bool]] = []

    def append_marker(
        self, index: int, batch: bytearray, producer_id: int, *, is_commit: bool
    ) -> AppendResult | ErrorCode:
        if self.error:
            return self.error
        self.ended.append((index, producer_id, is_commit))
        return AppendResult(ErrorCode.NONE, 0, -1)


class World:
    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.groups = FakeGroups()
        self.data: dict[tuple[str, int], FakePartition] = {
            ("t", 0): FakePartition(),
            ("t", 1): FakePartition(),
            (CONSUMER_OFFSETS, 4): FakePartition(),
        }
        self.log = LedPartition()
        self.answers: list[Any] = []
        self.markers = Markers(find=self.find, groups=self.groups, clock=StillClock())  # type: ignore[arg-type]
        self.leaders: dict[tuple[str, int], int] = {}
        self.sent: list[tuple[int, OutgoingMarker]] = []
        self.delivery = MarkerDelivery(
            broker_id=HERE,
            leader_of=self.leader_of,
            append=self.markers.append,
            send=lambda broker_id, marker: self.sent.append((broker_id, marker)),
            timers=self.timers,
        )
        self.driver = self.new_driver(TransactionShard())
        self.driver.on_loaded()
        self.apply(self.shard.init_producer_id(ID, 60_000, None, 7, NOW_MS))

    def find(self, topic: str, index: int) -> FakePartition | ErrorCode:
        return self.data.get((topic, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def leader_of(self, topic: str, index: int) -> int | None:
        return self.leaders.get((topic, index), HERE) if (topic, index) in self.data else None

    def new_driver(self, shard: TransactionShard) -> TransactionDriver:
        return TransactionDriver(self.log, shard, clock=StillClock(), timers=self.timers, markers=self.delivery)

    @property
    def shard(self) -> TransactionShard:
        return self.driver.shard

    def state(self) -> TransactionState:
        return self.shard.transactions[ID].state

    def apply(self, result: TransactionResult) -> None:
        pending = PendingResponse(lambda done: self.answers.append(done.error), self.answers.append)
        self.driver.apply(ID, result, pending)

    def add(self, *partitions: tuple[str, int]) -> None:
        self.apply(self.shard.add_partitions(ID, 7, 0, partitions, NOW_MS))

    def end(self, *, is_commit: bool = True) -> None:
        self.apply(self.shard.end(ID, 7, 0, is_commit=is_commit, now_ms=NOW_MS))


@pytest.fixture
def world() -> World:
    made = World()
    made.answers.clear()
    return made


def test_a_commit_writes_its_markers_and_then_that_they_are_written(world: World) -> None:
    world.add(("t", 0), ("t", 1), (CONSUMER_OFFSETS, 4))
    world.end()
    assert world.answers == [0, 0]
    assert world.state() is TransactionState.COMPLETE_COMMIT
    for index in (0, 1):
        [[record]] = world.data["t", index].batches
        marker = read_end_transaction_marker(record)
        assert marker is not None
        assert (marker.is_commit, marker.coordinator_epoch) == (True, 3)
    assert world.groups.ended == [(4, 7, True)]


def test_no_marker_is_written_before_the_decision_is_committed(world: World) -> None:
    world.add(("t", 0))
    world.log.is_slow = True
    world.end()
    assert world.answers == [0]
    assert world.data["t", 0].batches == []
    world.log.commit()
    assert world.answers == [0, 0]
    assert len(world.data["t", 0].batches) == 1
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_a_decision_that_is_never_committed_has_no_markers(world: World) -> None:
    world.add(("t", 0))
    world.log.is_slow = True
    world.end()
    world.log.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.answers == [0, ErrorCode.NOT_COORDINATOR]
    assert world.data["t", 0].batches == []


def test_the_end_waits_until_the_markers_are_committed(world: World) -> None:
    world.add(("t", 0), ("t", 1))
    world.data["t", 1].is_slow = True
    world.end(is_commit=False)
    assert world.state() is TransactionState.PREPARE_ABORT
    world.data["t", 1].commit()
    assert world.state() is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_a_marker_that_is_refused_is_tried_again(world: World, code: ErrorCode) -> None:
    world.add(("t", 0), ("t", 1))
    world.data["t", 0].error = code
    world.end()
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.timers.run_all()
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.data["t", 0].error = ErrorCode.NONE
    world.timers.run_all()
    assert world.state() is TransactionState.COMPLETE_COMMIT
    assert len(world.data["t", 1].batches) == 1


def test_groups_that_are_still_loading_get_their_marker_later(world: World) -> None:
    world.add((CONSUMER_OFFSETS, 4))
    world.groups.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.end()
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.groups.error = ErrorCode.NONE
    world.timers.run_all()
    assert world.state() is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT])
def test_partitions_that_are_deleted_or_need_no_marker_are_passed_over(world: World, code: ErrorCode) -> None:
    world.add(("t", 0), ("t", 1))
    del world.data["t", 0]
    world.data["t", 1].error = code
    world.end()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_a_coordinator_that_is_fenced_leaves_the_transaction_to_the_next(world: World) -> None:
    world.add(("t", 0), ("t", 1))
    world.data["t", 0].error = ErrorCode.NOT_ENOUGH_REPLICAS
    world.data["t", 1].error = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    world.end()
    world.data["t", 0].error = world.data["t", 1].error = ErrorCode.NONE
    world.timers.run_all()
    assert world.state() is TransactionState.PREPARE_COMMIT
    assert world.data["t", 0].batches == []


def test_markers_go_to_the_leaders_of_the_partitions(world: World) -> None:
    world.add(("t", 0), ("t", 1))
    world.leaders["t", 1] = THERE
    world.end()
    assert len(world.data["t", 0].batches) == 1
    [(broker_id, marker)] = world.sent
    assert (broker_id, marker.partition, marker.end) == (THERE, ("t", 1), TransactionEnd(7, 0, True, 3))
    assert world.state() is TransactionState.PREPARE_COMMIT
    marker.done(ErrorCode.NONE)
    assert world.state() is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NETWORK_EXCEPTION]
)
def test_a_marker_follows_its_leader(world: World, code: ErrorCode) -> None:
    world.add(("t", 0))
    world.leaders["t", 0] = THERE
    world.end()
    world.leaders["t", 0] = NO_LEADER
    world.sent.pop()[1].done(code)
    world.timers.run_all()
    assert world.sent == []
    world.leaders["t", 0] = HERE
    world.timers.run_all()
    assert len(world.data["t", 0].batches) == 1
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_pauses_between_retries_grow_to_a_second(world: World) -> None:
    world.add(("t", 0))
    world.leaders["t", 0] = NO_LEADER
    world.end()
    pauses = []
    for _ in range(6):
        [(seconds, _deadline)] = world.timers.deadlines
        pauses.append(seconds)
        world.timers.run_all()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_coordinator_that_is_unloaded_sends_no_more_markers(world: World) -> None:
    world.add(("t", 0))
    world.leaders["t", 0] = THERE
    world.end()
    world.driver.unload()
    world.sent.pop()[1].done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.timers.run_all()
    assert world.sent == []


def test_a_step_that_the_log_refuses_has_changed_nothing(world: World) -> None:
    world.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    world.add(("t", 0))
    assert world.answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert world.state() is TransactionState.EMPTY


def test_an_end_that_cannot_be_written_down_is_tried_again(world: World) -> None:
    world.add(("t", 0))
    world.data["t", 0].is_slow = True
    world.end()
    world.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    world.data["t", 0].commit()
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.log.error = ErrorCode.NONE
    world.timers.run_all()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def loaded_after_failover(world: World) -> TransactionShard:
    """Returns a shard with the state in the log. The previous driver is unloaded."""
    world.driver.unload()
    shard = TransactionShard()
    shard.transactions.update(world.shard.transactions)
    return shard


def test_what_was_decided_before_a_load_is_carried_out_after_it(world: World) -> None:
    world.add(("t", 0))
    world.data["t", 0].error = ErrorCode.KAFKA_STORAGE_ERROR
    world.end()
    shard = loaded_after_failover(world)
    world.data["t", 0].error = ErrorCode.NONE
    world.new_driver(shard).on_loaded()
    assert shard.transactions[ID].state is TransactionState.COMPLETE_COMMIT
    assert world.state() is TransactionState.PREPARE_COMMIT


def test_a_loaded_decision_has_no_markers_before_it_is_committed(world: World) -> None:
    world.add(("t", 0))
    world.log.is_slow = True
    world.end()
    shard = loaded_after_failover(world)
    driver = world.new_driver(shard)
    driver.log.note_loaded(2)
    driver.on_loaded()
    assert world.data["t", 0].batches == []
    world.log.commit()
    assert len(world.data["t", 0].batches) == 1


def test_an_abort_of_what_took_too_long_fences(world: World) -> None:
    world.add(("t", 0))
    world.driver.abort(ID)
    assert world.state() is TransactionState.COMPLETE_ABORT
    assert world.shard.transactions[ID].producer_epoch == 1


def test_one_marker_tells_its_error(world: World) -> None:
    codes: list[int] = []
    for topic in ("t", "nowhere"):
        world.markers.append(TransactionEnd(7, 0, False, 0), topic, 0, codes.append)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
