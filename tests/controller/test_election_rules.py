"""Who leads, who hands over, and which ISR a leader may propose: the pure rules."""

from __future__ import annotations

import pytest

from kbroker.controller.balance import imbalanced
from kbroker.controller.election import elect, elect_preferred, hand_over, without_dead
from kbroker.controller.image import NO_LEADER, Partition, Topic
from kbroker.controller.isr_rules import IsrProposal, judge_proposal
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

LED = Partition(leader=1, leader_epoch=4, isr=(1, 2, 3), replicas=(1, 2, 3), partition_epoch=7, controller_epoch=1)


def following(partition: Partition, *, leader: int, isr: tuple[int, ...]) -> Partition:
    return partition._replace(
        leader=leader,
        isr=isr,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=9,
    )


def test_the_first_live_replica_of_the_isr_follows_a_leader_that_is_gone() -> None:
    partition = LED._replace(isr=(3, 2, 1))
    assert elect(partition, {2, 3}, controller_epoch=9) == following(LED, leader=2, isr=(3, 2))
    assert elect(partition, {1}, controller_epoch=9) is None


def test_a_replica_out_of_sync_leads_only_where_loss_is_allowed() -> None:
    partition = LED._replace(isr=(1,))
    assert elect(partition, {2, 3}, controller_epoch=9) == following(LED, leader=NO_LEADER, isr=(1,))
    unclean = elect(partition, {2, 3}, controller_epoch=9, unclean_is_allowed=True)
    assert unclean == following(LED, leader=2, isr=(2,))


def test_a_preferred_leader_must_be_there_and_in_sync() -> None:
    moved = LED._replace(leader=2)
    assert elect_preferred(moved, {1, 2}, controller_epoch=9) == following(LED, leader=1, isr=(1, 2, 3))
    assert elect_preferred(moved, {2, 3}, controller_epoch=9) is None
    assert elect_preferred(moved._replace(isr=(2, 3)), {1, 2, 3}, controller_epoch=9) is None


def test_the_dead_leave_the_isr_of_a_leader_that_lives() -> None:
    assert without_dead(LED, {1, 3}, controller_epoch=9) == following(LED, leader=1, isr=(1, 3))
    assert without_dead(LED, {1, 2, 3}, controller_epoch=9) is None


@pytest.mark.parametrize(
    ("partition", "ready", "outcome"),
    [
        (LED, {2, 3}, following(LED, leader=2, isr=(2, 3))),
        (LED._replace(isr=(1, 3)), {2, 3}, following(LED, leader=3, isr=(3,))),
        (LED._replace(isr=(1,)), {2, 3}, None),
        (LED, set(), None),
        (LED._replace(leader=2), {2, 3}, following(LED, leader=2, isr=(2, 3))),
        (LED._replace(leader=2, isr=(2, 3)), {2, 3}, None),
        (LED._replace(leader=NO_LEADER, isr=(1,)), {2, 3}, None),
    ],
)
def test_a_broker_that_stops_hands_over_what_others_can_take(
    partition: Partition, ready: set[int], outcome: Partition | None
) -> None:
    assert hand_over(partition, 1, ready, controller_epoch=9) == outcome


def test_leaderships_go_back_when_too_many_are_elsewhere() -> None:
    home, away, out = LED, LED._replace(leader=2), LED._replace(leader=2, isr=(2, 3))
    few = Topic("few", b"f" * 16, (*[home] * 9, away))
    assert imbalanced([few], {1, 2, 3}, 0.1) == []
    assert imbalanced([few], {1, 2, 3}, 0.0) == [("few", 9)]
    many = Topic("many", b"m" * 16, (home, away, out))
    assert imbalanced([many], {1, 2, 3}, 0.1) == [("many", 1)]
    assert imbalanced([many], {2, 3}, 0.1) == []


def judged(
    proposal: IsrProposal, partition: Partition = LED, *, ready: frozenset[int] = frozenset({1, 2, 3})
) -> object:
    outcome = judge_proposal(partition, proposal, 1, ready, controller_epoch=9)
    return ErrorCode(outcome.code) if isinstance(outcome, Refusal) else outcome


def test_an_isr_is_taken_under_the_same_leader_epoch() -> None:
    outcome = judged(IsrProposal("t", 0, 4, 7, (1, 2)))
    assert outcome == LED._replace(isr=(1, 2), partition_epoch=8, controller_epoch=9)


def test_an_isr_that_is_there_already_is_answered_as_it_is() -> None:
    assert judged(IsrProposal("t", 0, 4, 6, (3, 2, 1))) is LED


@pytest.mark.parametrize(
    ("proposal", "code"),
    [
        (IsrProposal("t", 0, 3, 7, (1, 2)), ErrorCode.FENCED_LEADER_EPOCH),
        (IsrProposal("t", 0, 5, 7, (1, 2)), ErrorCode.NOT_CONTROLLER),
        (IsrProposal("t", 0, 4, 8, (1, 2)), ErrorCode.NOT_CONTROLLER),
        (IsrProposal("t", 0, 4, 6, (1, 2)), ErrorCode.INVALID_UPDATE_VERSION),
        (IsrProposal("t", 0, 4, 7, (2, 3)), ErrorCode.INVALID_REQUEST),
        (IsrProposal("t", 0, 4, 7, ()), ErrorCode.INVALID_REQUEST),
        (IsrProposal("t", 0, 4, 7, (1, 5)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_isr_decided_upon_something_else_is_refused(proposal: IsrProposal, code: ErrorCode) -> None:
    assert judged(proposal) == code


def test_only_the_leader_proposes() -> None:
    assert judged(IsrProposal("t", 0, 4, 7, (1, 2)), LED._replace(leader=2)) == ErrorCode.INVALID_REQUEST


def test_a_replica_that_is_gone_or_leaving_does_not_join() -> None:
    proposal = IsrProposal("t", 0, 4, 7, (1, 2))
    alone = LED._replace(isr=(1,))
    assert judged(proposal, alone, ready=frozenset({1})) == ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(judged(proposal, alone), Partition)
