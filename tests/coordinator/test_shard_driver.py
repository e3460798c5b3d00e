"""Append, replay, answer: in this order, and all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from trio.testing import MockClock

from kbroker.coordinator.shard_driver import ShardDriver
from kbroker.group.classic.states import GroupState
from kbroker.group.records import offset_record
from kbroker.group.result import GroupCoordinatorConfig
from kbroker.group.shard import GroupShard
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.messages import join_group, sync_group
from tests.coordinator.harness import NOW_MS, FakePartition, FakeTimers, StillClock, Waiting


class Driven:
    def __init__(self, **configs: str) -> None:
        self.partition = FakePartition(**configs)
        self.timers = FakeTimers()
        self.flushes: list[Callable[[], None]] = []
        shard = GroupShard(GroupCoordinatorConfig(), iter(map(str, range(1000))).__next__)
        self.driver = ShardDriver(
            self.partition, shard, clock=StillClock(), timers=self.timers, flush_at_end=self.flushes.append
        )
        self.shard = shard

    def commit(self, partition: int, offset: int = 7, metadata: str = "") -> Waiting:
        waiting = Waiting()
        self.driver.enqueue([offset_of(partition, offset, metadata)], waiting.pending, f"committed {partition}")
        return waiting

    def join(self, member_id: str = "") -> Waiting:
        body = join_group.REQUEST(
            group_id="group",
            member_id=member_id,
            protocol_type="consumer",
            protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
        )
        waiting = Waiting()
        result = self.shard.join(body, 3, "client", "/host", waiting.pending, self.driver.now())
        self.driver.apply("group", result)
        return waiting

    def sync(self, member_id: str, assignment: bytes = b"part") -> Waiting:
        assigned = sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
        body = sync_group.REQUEST(group_id="group", member_id=member_id, generation_id=1, assignments=[assigned])
        waiting = Waiting()
        self.driver.apply("group", self.shard.sync(body, waiting.pending, self.driver.now()))
        return waiting

    @property
    def state(self) -> Any:
        group = self.shard.describe("group")
        return None if group is None else group.state


def offset_of(partition: int, offset: int = 7, metadata: str = "") -> KeyAndValue:
    return offset_record("group", "topic", partition, (offset, -1, metadata, NOW_MS, -1))


async def test_commits_of_one_turn_share_a_batch() -> None:
    driven = Driven()
    waiting = [driven.commit(number) for number in range(5)]
    assert driven.flushes == [driven.driver.flush]
    assert not any(response.received for response in waiting)
    driven.driver.flush()
    assert [len(batch) for batch in driven.partition.batches] == [5]
    assert [response.answer for response in waiting] == [f"committed {number}" for number in range(5)]
    assert len(driven.shard.offsets.committed("group")) == 5


async def test_each_turn_asks_for_a_flush_again() -> None:
    driven = Driven()
    driven.commit(0)
    driven.driver.flush()
    driven.commit(1)
    assert len(driven.flushes) == 2


async def test_an_answer_waits_until_its_records_are_committed() -> None:
    driven = Driven()
    driven.partition.is_slow = True
    waiting = driven.commit(0)
    driven.driver.flush()
    assert driven.shard.offsets.committed("group")  # replayed all the same
    assert waiting.received == []
    driven.partition.commit()
    assert waiting.answer == "committed 0"


async def test_a_read_waits_for_what_it_saw() -> None:
    driven = Driven()
    driven.partition.is_slow = True
    driven.commit(0)
    driven.driver.flush()
    reading = Waiting()
    driven.driver.log.answer(reading.pending, "read")
    assert reading.received == []
    driven.partition.commit()
    assert reading.answer == "read"


async def test_an_answer_that_waits_too_long_becomes_an_error() -> None:
    driven = Driven()
    driven.partition.is_slow = True
    waiting = driven.commit(0)
    driven.driver.flush()
    driven.timers.run_all()
    assert waiting.answer == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driven.partition.commit()
    assert waiting.answer == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_lost_partition_is_told_as_a_lost_coordinator() -> None:
    driven = Driven()
    driven.partition.is_slow = True
    waiting = driven.commit(0)
    driven.driver.flush()
    driven.partition.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert waiting.answer == ErrorCode.NOT_COORDINATOR


async def test_a_refused_commit_changes_nothing() -> None:
    driven = Driven()
    driven.partition.error = ErrorCode.KAFKA_STORAGE_ERROR
    waiting = driven.commit(0)
    driven.driver.flush()
    assert waiting.answer == ErrorCode.NOT_COORDINATOR
    assert driven.shard.offsets.committed("group") == {}


async def test_a_commit_too_large_for_the_log_takes_no_other_along() -> None:
    driven = Driven(max_message_bytes="1000")
    waiting = [driven.commit(0), driven.commit(1, metadata="x" * 2000), driven.commit(2)]
    driven.driver.flush()
    assert [response.answer for response in waiting] == [
        "committed 0",
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        "committed 2",
    ]
    assert {partition for _, partition in driven.shard.offsets.committed("group")} == {0, 2}


async def test_a_refused_assignment_is_refused_to_everybody_and_the_group_begins_anew() -> None:
    driven = Driven()
    member_id = driven.join().answer.member_id
    driven.partition.error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert driven.sync(member_id).answer == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driven.state is GroupState.EMPTY
    driven.partition.error = ErrorCode.NONE
    assert driven.join(member_id).answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driven.join().answer.error_code == ErrorCode.NONE


async def test_a_group_too_large_for_the_log_is_refused() -> None:
    driven = Driven(max_message_bytes="1000")
    member_id = driven.join().answer.member_id
    assert driven.sync(member_id, b"x" * 2000).answer == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_many_records_are_cut_into_batches_that_the_topic_takes() -> None:
    driven = Driven(max_message_bytes="2000")
    code = driven.driver.log.append([offset_of(number, metadata="x" * 100) for number in range(50)])
    assert code == ErrorCode.NONE
    assert len(driven.partition.batches) > 1
    assert sum(map(len, driven.partition.batches)) == 50
    assert len(driven.shard.offsets.committed("group")) == 50


async def test_a_group_is_woken_not_before_its_time(mock_clock: MockClock) -> None:
    mock_clock.jump(0.9996)
    driven = Driven()
    driven.sync(driven.join().answer.member_id)
    for seconds, deadline in driven.timers.deadlines:
        assert (trio.current_time() + seconds) * 1000 >= 1000
        assert deadline.callback is not None
    mock_clock.jump(max(seconds for seconds, _ in driven.timers.deadlines if seconds < 60))
    driven.timers.run_all()
    assert driven.state is GroupState.EMPTY


async def test_whoever_waits_is_sent_away_when_the_shard_goes() -> None:
    driven = Driven()
    member_id = driven.join().answer.member_id
    driven.sync(member_id)
    waiting = driven.join()
    commit = driven.commit(0)
    driven.driver.unload()
    assert waiting.answer == commit.answer == ErrorCode.NOT_COORDINATOR
    driven.timers.run_all()
    assert driven.partition.batches[2:] == []


async def test_an_answer_that_cannot_be_sent_does_not_keep_others_from_theirs() -> None:
    driven = Driven()
    broken = Waiting()

    def fail(response: Any) -> None:
        raise ValueError("cannot be encoded")

    driven.driver.enqueue([offset_of(0)], broken.pending._replace(reply=fail), "lost")
    waiting = driven.commit(1)
    driven.driver.flush()
    assert broken.answer == ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting.answer == "committed 1"
