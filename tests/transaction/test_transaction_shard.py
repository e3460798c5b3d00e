"""What becomes of a transactional id: epochs, fences, partitions, commits and aborts."""

from __future__ import annotations

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import Transaction
from kbroker.transaction.result import NeedsProducerId, TransactionResult
from kbroker.transaction.shard import MAX_EPOCH, TransactionShard
from kbroker.transaction.states import TransactionState

NOW = 1_000_000
ID = "pay"
T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
WRONG_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class World:
    """A shard whose log takes everything."""

    def __init__(self, *, version: int = 0) -> None:
        self.shard = TransactionShard()
        self.version = version
        self.now = NOW
        self.next_id = 10

    def apply(self, result: TransactionResult) -> TransactionResult:
        if result.updated is not None:
            self.shard.replay([self.shard.record(ID, result)])
            self.shard.on_appended(ID, result)
        return result

    def init(self, expected: tuple[int, int] | None = None, *, timeout_ms: int = 60_000) -> TransactionResult:
        self.next_id += 1
        return self.apply(self.shard.init_producer_id(ID, timeout_ms, expected, self.next_id, self.now))

    def add(self, producer_id: int, epoch: int, *partitions: tuple[str, int]) -> TransactionResult:
        return self.apply(
            self.shard.add_partitions(ID, producer_id, epoch, partitions, self.now, client_version=self.version)
        )

    def end(
        self, producer_id: int, epoch: int, *, is_commit: bool = True, new_id: int | None = None
    ) -> TransactionResult:
        result = self.shard.end(
            ID,
            producer_id,
            epoch,
            is_commit=is_commit,
            now_ms=self.now,
            client_version=self.version,
            new_id=new_id,
        )
        return self.apply(result)

    def complete(self) -> None:
        self.apply(self.shard.complete(ID, self.now))

    def set(self, **changes: object) -> None:
        changed = self.here._replace(**changes)  # type: ignore[arg-type]
        self.shard.replay([self.shard.record(ID, TransactionResult(updated=changed))])

    @property
    def here(self) -> Transaction:
        return self.shard.transactions[ID]


def outcome(result: TransactionResult) -> tuple[ErrorCode, int, int]:
    return result.error, result.producer_id, result.producer_epoch


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bumping() -> World:
    """Its client lets the epoch grow with every transaction."""
    return World(version=2)


# Ids and epochs


def test_the_first_producer_gets_a_new_id_and_those_after_it_higher_epochs(world: World) -> None:
    assert outcome(world.init()) == (NONE, 11, 0)
    assert outcome(world.init()) == (NONE, 11, 1)
    assert outcome(world.init(timeout_ms=5)) == (NONE, 11, 2)
    assert world.here.timeout_ms == 5
    assert world.here.state is TransactionState.EMPTY


def test_a_new_id_has_to_be_there(world: World) -> None:
    with pytest.raises(NeedsProducerId):
        world.shard.init_producer_id(ID, 1, None, None, NOW)


def test_a_producer_goes_on_with_its_epoch_and_may_ask_twice(world: World) -> None:
    world.init()
    assert outcome(world.init((11, 0))) == (NONE, 11, 1)
    assert outcome(world.init((11, 0))) == (NONE, 11, 1), "the answer was lost"
    assert outcome(world.init((11, 1))) == (NONE, 11, 2)


def test_whoever_was_replaced_is_fenced(world: World) -> None:
    world.init()
    world.init()
    assert world.init((11, 0)).error == FENCED
    assert world.init((4711, 0)).error == FENCED
    assert world.add(11, 0, T0).error == FENCED
    assert world.end(11, 0).error == FENCED


def test_an_id_whose_epochs_are_used_up_is_replaced(world: World) -> None:
    world.init()
    world.set(producer_epoch=MAX_EPOCH - 1)
    assert outcome(world.init((11, MAX_EPOCH - 1))) == (NONE, 13 - 1, 0)
    assert world.here.previous_producer_id == 11
    world.set(producer_epoch=0)
    assert world.init((11, MAX_EPOCH - 1)).error == NONE, "a retry, whose answer was lost"


def test_a_retry_after_the_id_was_replaced_is_not_fenced_but_another_one_is(world: World) -> None:
    world.init()
    world.set(producer_epoch=MAX_EPOCH - 1)
    world.init((11, MAX_EPOCH - 1))
    assert world.init((11, 5)).error == FENCED


# Transactions


def test_partitions_are_added_and_the_time_counts_from_the_first(world: World) -> None:
    world.init()
    assert world.add(11, 0, T0).error == NONE
    world.now += 500
    world.add(11, 0, T1)
    assert world.here.partitions == {T0, T1}
    assert (world.here.start_ms, world.here.update_ms) == (NOW, NOW + 500)
    assert world.add(11, 0, T0).updated is None, "nothing new, nothing to write"


def test_partitions_may_only_be_added_with_the_right_id_and_epoch(world: World) -> None:
    assert world.add(11, 0, T0).error == WRONG_ID
    world.init()
    assert world.add(12, 0, T0).error == WRONG_ID
    assert world.add(11, 1, T0).error == FENCED


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends_in_two_steps(world: World, is_commit: bool) -> None:
    prepared, completed = (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if is_commit
        else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
    )
    world.init()
    world.add(11, 0, T0, T1)
    assert world.end(11, 0, is_commit=is_commit).error == NONE
    assert (world.here.state, world.here.partitions) == (prepared, frozenset({T0, T1}))
    assert world.shard.prepared() == [ID]
    world.complete()
    assert (world.here.state, world.here.partitions) == (completed, frozenset())
    assert world.here.producer_epoch == 0
    assert world.add(11, 0, T0).error == NONE, "the next one"


def test_while_markers_are_written_everybody_waits(world: World) -> None:
    world.init()
    world.add(11, 0, T0)
    world.end(11, 0)
    assert world.init().error == CONCURRENT
    assert world.add(11, 0, T1).error == CONCURRENT
    assert world.end(11, 0).error == CONCURRENT
    assert world.end(11, 0, is_commit=False).error == INVALID_STATE
    assert world.shard.verify(ID, 11, 0, T0) == CONCURRENT


def test_to_end_what_has_ended_is_a_retry_and_the_contrary_is_wrong(world: World) -> None:
    world.init()
    assert world.end(11, 0).error == INVALID_STATE, "nothing has begun"
    world.add(11, 0, T0)
    world.end(11, 0)
    world.complete()
    assert world.end(11, 0) == TransactionResult()
    assert world.end(11, 0, is_commit=False).error == INVALID_STATE
    assert world.end(12, 0).error == WRONG_ID


def test_another_producer_aborts_what_is_open_and_comes_again(world: World) -> None:
    world.init()
    world.add(11, 0, T0)
    assert world.init().error == CONCURRENT
    assert (world.here.state, world.here.producer_epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert world.end(11, 0).error == FENCED
    world.complete()
    assert outcome(world.init()) == (NONE, 11, 2)


def test_what_takes_too_long_is_aborted_and_fenced(world: World) -> None:
    world.init(timeout_ms=1000)
    world.add(11, 0, T0)
    assert world.shard.timed_out(NOW + 1000) == []
    assert world.shard.timed_out(NOW + 1001) == [ID]
    world.apply(world.shard.abort_fencing(ID, NOW + 1001))
    assert (world.here.state, world.here.producer_epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert world.shard.timed_out(NOW + 5000) == []
    world.complete()
    assert world.end(11, 0).error == FENCED
    assert world.init((11, 0)).error == FENCED


def test_a_partition_learns_whether_records_belong_to_a_transaction(world: World) -> None:
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert world.shard.verify(ID, 11, 0, T0) == WRONG_ID
    world.init()
    assert world.shard.verify(ID, 11, 0, T0) == abortable
    world.add(11, 0, T0)
    assert world.shard.verify(ID, 11, 0, T0) == NONE
    assert world.shard.verify(ID, 11, 0, T1) == abortable
    assert world.shard.verify(ID, 11, 1, T0) == FENCED


# Epochs that grow with every transaction


def test_the_epoch_grows_with_every_transaction(bumping: World) -> None:
    bumping.init()
    bumping.add(11, 0, T0)
    assert outcome(bumping.end(11, 0)) == (NONE, 11, 1)
    assert bumping.here.producer_epoch == 1, "the markers fence what comes late"
    bumping.complete()
    bumping.add(11, 1, T0)
    assert outcome(bumping.end(11, 1, is_commit=False)) == (NONE, 11, 2)


def test_a_retry_of_the_end_is_told_the_same(bumping: World) -> None:
    bumping.init()
    bumping.add(11, 0, T0)
    bumping.end(11, 0)
    assert bumping.end(11, 0).error == CONCURRENT
    assert bumping.end(11, 0, is_commit=False).error == INVALID_STATE
    bumping.complete()
    assert outcome(bumping.end(11, 0)) == (NONE, 11, 1)
    assert bumping.end(11, 0, is_commit=False).error == INVALID_STATE


def test_an_end_that_comes_late_does_not_end_the_next_transaction(bumping: World) -> None:
    bumping.init()
    bumping.add(11, 0, T0)
    bumping.end(11, 0)
    bumping.complete()
    bumping.add(11, 1, T0)
    assert bumping.end(11, 0).error == FENCED
    assert bumping.here.state is TransactionState.ONGOING


def test_an_abort_after_the_timeout_is_a_retry_and_a_commit_is_not(bumping: World) -> None:
    bumping.init()
    bumping.add(11, 0, T0)
    bumping.apply(bumping.shard.abort_fencing(ID, NOW))
    bumping.complete()
    assert bumping.end(11, 0).error == INVALID_STATE
    assert outcome(bumping.end(11, 0, is_commit=False)) == (NONE, 11, 1), "it goes on with what the fence had"


def test_an_abort_of_nothing_raises_the_epoch_and_a_commit_of_nothing_is_wrong(bumping: World) -> None:
    bumping.init()
    assert bumping.end(11, 0).error == INVALID_STATE
    assert outcome(bumping.end(11, 0, is_commit=False)) == (NONE, 11, 1)
    assert bumping.here.start_ms == NOW
    bumping.complete()
    assert outcome(bumping.end(11, 1, is_commit=False)) == (NONE, 11, 2)


def test_the_last_epoch_leads_to_a_new_id(bumping: World) -> None:
    last = MAX_EPOCH - 1
    bumping.init()
    bumping.set(producer_epoch=last)
    bumping.add(11, last, T0)
    with pytest.raises(NeedsProducerId):
        bumping.end(11, last)
    assert outcome(bumping.end(11, last, new_id=77)) == (NONE, 77, 0)
    assert (bumping.here.producer_id, bumping.here.producer_epoch, bumping.here.next_producer_id) == (11, MAX_EPOCH, 77)
    bumping.complete()
    assert (bumping.here.producer_id, bumping.here.producer_epoch, bumping.here.next_producer_id) == (77, 0, -1)
    assert outcome(bumping.end(11, last)) == (NONE, 77, 0), "a retry"
    assert bumping.add(77, 0, T0).error == NONE


# Looking after them


def test_idle_ids_are_forgotten_and_those_at_work_are_not(world: World) -> None:
    world.init()
    assert list(world.shard.expire(now_ms=NOW + 99, expiration_ms=100)) == []
    tombstones = list(world.shard.expire(now_ms=NOW + 100, expiration_ms=100))
    assert [value for _, value in tombstones] == [None]
    world.add(11, 0, T0)
    assert list(world.shard.expire(now_ms=NOW + 1000, expiration_ms=100)) == []
    world.end(11, 0)
    assert list(world.shard.expire(now_ms=NOW + 1000, expiration_ms=100)) == []
    world.complete()
    tombstones = list(world.shard.expire(now_ms=NOW + 1000, expiration_ms=100))
    world.shard.replay(tombstones)
    assert world.shard.transactions == {}
    assert outcome(world.init()) == (NONE, 12, 0)
