"""Rules for moving partitions to other replicas."""

from __future__ import annotations

from collections.abc import Container, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.image import NO_LEADER, PartitionState
from kbroker.controller.rules.reassignment import (
    finish_reassignment,
    is_due,
    is_moving_to,
    is_reassigning,
    plan_reassignment,
    restart_reassignment,
)
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

ALL = frozenset(range(1, 7))
SETTLED = PartitionState(
    leader=1, leader_epoch=4, isr=(1, 2, 3), replicas=(1, 2, 3), partition_epoch=7, controller_epoch=1
)


def plan(partition: PartitionState, wanted: Sequence[int] | None, live: Container[int] = ALL) -> PartitionState:
    planned = plan_reassignment(partition, wanted, live, controller_epoch=9)
    assert isinstance(planned, PartitionState), planned.message
    return planned


def finish(partition: PartitionState, live: Container[int] = ALL) -> PartitionState | None:
    return finish_reassignment(partition, live, controller_epoch=9)


def after(partition: PartitionState, **changed: object) -> PartitionState:
    """Returns the state that the controller writes next."""
    return partition._replace(
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=9,
        **changed,  # type: ignore[arg-type]
    )


def test_a_move_goes_through_the_states_of_kafka() -> None:
    moving = plan(SETTLED, [4, 5, 1])
    assert moving == after(
        SETTLED, replicas=(4, 5, 1, 2, 3), adding_replicas=(4, 5), removing_replicas=(2, 3), isr=(1, 2, 3)
    )
    assert finish(moving) is None
    assert finish(moving._replace(isr=(1, 2, 3, 4))) is None
    in_sync = moving._replace(isr=(1, 2, 3, 4, 5))
    assert finish(in_sync) == after(
        in_sync, replicas=(4, 5, 1), adding_replicas=(), removing_replicas=(), isr=(1, 4, 5), leader=1
    )


def test_the_first_target_replica_that_is_alive_leads_if_the_leader_is_removed() -> None:
    moving = plan(SETTLED, [4, 5, 6])._replace(isr=(1, 2, 3, 4, 5, 6))
    finished, without_4 = finish(moving), finish(moving, ALL - {4})
    assert finished is not None
    assert without_4 is not None
    assert (finished.leader, finished.isr) == (4, (4, 5, 6))
    assert without_4.leader == 5
    assert finish(moving, {1, 2, 3}) is None, "none of them could lead"


def test_replicas_that_are_in_sync_move_at_once() -> None:
    assert plan(SETTLED, [2, 1]) == after(SETTLED, replicas=(2, 1), isr=(1, 2))
    assert plan(SETTLED, [3]) == after(SETTLED, replicas=(3,), isr=(3,), leader=3)
    assert plan(SETTLED, [3, 2, 1]) == after(SETTLED, replicas=(3, 2, 1))
    assert plan(SETTLED, [1, 2, 3]) is SETTLED


def test_a_replica_that_lags_holds_back_a_smaller_replication_factor() -> None:
    lagging = SETTLED._replace(isr=(1, 2))
    moving = plan(lagging, [1, 3])
    assert (moving.replicas, moving.removing_replicas) == ((1, 3, 2), (2,))
    assert not is_due(moving)
    assert is_due(moving._replace(isr=(1, 2, 3)))


def test_a_cancelled_move_ends_with_the_original_replicas() -> None:
    moving = plan(SETTLED, [4, 5, 6])
    joined = moving._replace(isr=(1, 2, 3, 4))
    cancelled = plan(joined, None)
    assert cancelled == after(
        joined, replicas=(1, 2, 3), adding_replicas=(), removing_replicas=(), isr=(1, 2, 3), leader=1
    )
    led_by_new = joined._replace(leader=4, isr=(4, 2))
    assert (plan(led_by_new, None).leader, plan(led_by_new, None).isr) == (2, (2,))


def test_a_move_can_be_replaced_by_another_one() -> None:
    first = plan(SETTLED, [4, 5, 1])._replace(isr=(1, 2, 3, 4))
    second = plan(first, [6, 1, 2])
    assert second == after(
        first, replicas=(6, 1, 2, 3), adding_replicas=(6,), removing_replicas=(3,), isr=(1, 2, 3), leader=1
    )
    assert plan(second, [6, 1, 2]) is second


def test_a_move_that_would_lose_records_is_refused() -> None:
    only_new = plan(SETTLED, [4, 5])._replace(leader=4, isr=(4,))
    outcome = plan_reassignment(only_new, None, ALL, controller_epoch=9)
    assert isinstance(outcome, Refusal)
    assert outcome.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "unclean leader election" in str(outcome.message)


@pytest.mark.parametrize(
    ("wanted", "code", "text"),
    [
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        ([1, 7], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 7, but no such broker is registered"),
        ([-1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker -1"),
        ([1, 4, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes the broker 4 more than once"),
    ],
)
def test_a_bad_request_is_refused(wanted: Sequence[int] | None, code: ErrorCode, text: str) -> None:
    outcome = plan_reassignment(SETTLED, wanted, ALL, controller_epoch=9)
    assert isinstance(outcome, Refusal)
    assert outcome.code == code
    assert text in str(outcome.message)


def test_a_broker_that_is_down_may_keep_its_replica_but_gets_no_new_one() -> None:
    live = {1, 2, 4}
    assert plan(SETTLED._replace(isr=(1, 2)), [1, 3, 4], live).adding_replicas == (4,)
    outcome = plan_reassignment(SETTLED, [1, 5], live, controller_epoch=9)
    assert isinstance(outcome, Refusal)


def test_the_replication_factor_stays_if_the_client_asks_for_it() -> None:
    for wanted, is_refused in (([4, 5], True), ([4, 5, 6], False)):
        outcome = plan_reassignment(SETTLED, wanted, ALL, controller_epoch=9, may_change_factor=False)
        assert isinstance(outcome, Refusal) is is_refused
    assert isinstance(outcome, PartitionState)
    outcome = plan_reassignment(outcome, [4], ALL, controller_epoch=9, may_change_factor=False)
    assert isinstance(outcome, Refusal)
    assert (outcome.code, outcome.message) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "The replication factor is changed from 3 to 1",
    )


def test_a_new_controller_tells_the_leader_again_in_a_new_epoch() -> None:
    moving = plan(SETTLED, [4])
    assert restart_reassignment(moving, controller_epoch=9) == after(moving)
    assert restart_reassignment(SETTLED, controller_epoch=9) is None
    assert is_moving_to(moving, [4])
    assert not is_moving_to(SETTLED, [1, 2, 3])


brokers = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)


@given(
    wanted=st.lists(st.one_of(st.none(), brokers), min_size=1, max_size=5),
    in_sync=st.sets(st.integers(1, 6)),
    live=st.sets(st.integers(1, 6), min_size=1),
)
def test_leader_and_isr_stay_within_the_replicas(
    wanted: list[list[int] | None], in_sync: set[int], live: set[int]
) -> None:
    partition = SETTLED
    for replicas in wanted:
        planned = plan_reassignment(partition, replicas, live, controller_epoch=9)
        if isinstance(planned, Refusal):
            continue
        joined = dict.fromkeys((*planned.isr, *(replica for replica in planned.replicas if replica in in_sync & live)))
        partition = planned._replace(isr=tuple(joined))
        partition = finish_reassignment(partition, live, controller_epoch=9) or partition
        assert partition.isr
        assert set(partition.isr) <= set(partition.replicas)
        assert partition.leader == NO_LEADER or partition.leader in partition.isr
        assert len(set(partition.replicas)) == len(partition.replicas)
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= set(partition.replicas)
        if replicas is not None and not is_reassigning(partition):
            assert partition.replicas == tuple(replicas)
