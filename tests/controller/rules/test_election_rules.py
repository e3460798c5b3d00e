"""Rules for elections, controlled shutdown and proposed ISRs."""

from __future__ import annotations

import pytest

from kbroker.controller.image import NO_LEADER, PartitionState, TopicImage
from kbroker.controller.rules.election import elect, elect_for_shutdown, elect_preferred, shrink_isr
from kbroker.controller.rules.isr_rules import IsrProposal, validate_proposal
from kbroker.controller.rules.leader_imbalance import imbalanced_partitions
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

LED = PartitionState(leader=1, leader_epoch=4, isr=(1, 2, 3), replicas=(1, 2, 3), partition_epoch=7, controller_epoch=1)


def following(partition: PartitionState, *, leader: int, isr: tuple[int, ...]) -> PartitionState:
    return partition._replace(
        leader=leader,
        isr=isr,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=9,
    )


def test_the_first_live_replica_of_the_isr_replaces_a_dead_leader() -> None:
    partition = LED._replace(isr=(3, 2, 1))
    assert elect(partition, {2, 3}, controller_epoch=9) == following(LED, leader=2, isr=(3, 2))
    assert elect(partition, {1}, controller_epoch=9) is None


def test_an_out_of_sync_replica_leads_only_if_unclean_election_is_allowed() -> None:
    partition = LED._replace(isr=(1,))
    assert elect(partition, {2, 3}, controller_epoch=9) == following(LED, leader=NO_LEADER, isr=(1,))
    unclean = elect(partition, {2, 3}, controller_epoch=9, unclean_is_allowed=True)
    assert unclean == following(LED, leader=2, isr=(2,))


def test_a_preferred_leader_must_be_live_and_in_sync() -> None:
    moved = LED._replace(leader=2)
    assert elect_preferred(moved, {1, 2}, controller_epoch=9) == following(LED, leader=1, isr=(1, 2, 3))
    assert elect_preferred(moved, {2, 3}, controller_epoch=9) is None
    assert elect_preferred(moved._replace(isr=(2, 3)), {1, 2, 3}, controller_epoch=9) is None


def test_dead_brokers_leave_the_isr_of_a_live_leader() -> None:
    assert shrink_isr(LED, {1, 3}, controller_epoch=9) == following(LED, leader=1, isr=(1, 3))
    assert shrink_isr(LED, {1, 2, 3}, controller_epoch=9) is None


@pytest.mark.parametrize(
    ("partition", "eligible", "outcome"),
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
def test_a_controlled_shutdown_moves_leaderships_that_others_can_take(
    partition: PartitionState, eligible: set[int], outcome: PartitionState | None
) -> None:
    assert elect_for_shutdown(partition, 1, eligible, controller_epoch=9) == outcome


def test_preferred_replicas_lead_again_when_too_many_leaders_are_elsewhere() -> None:
    home, away, out = LED, LED._replace(leader=2), LED._replace(leader=2, isr=(2, 3))
    few = TopicImage("few", b"f" * 16, (*[home] * 9, away))
    assert imbalanced_partitions([few], {1, 2, 3}, 0.1) == []
    assert imbalanced_partitions([few], {1, 2, 3}, 0.0) == [("few", 9)]
    many = TopicImage("many", b"m" * 16, (home, away, out))
    assert imbalanced_partitions([many], {1, 2, 3}, 0.1) == [("many", 1)]
    assert imbalanced_partitions([many], {2, 3}, 0.1) == []


def validated(
    proposal: IsrProposal, partition: PartitionState = LED, *, eligible: frozenset[int] = frozenset({1, 2, 3})
) -> object:
    outcome = validate_proposal(partition, proposal, 1, eligible, controller_epoch=9)
    return ErrorCode(outcome.code) if isinstance(outcome, Refusal) else outcome


def test_a_valid_isr_is_accepted_in_the_same_leader_epoch() -> None:
    outcome = validated(IsrProposal("t", 0, 4, 7, (1, 2)))
    assert outcome == LED._replace(isr=(1, 2), partition_epoch=8, controller_epoch=9)


def test_a_proposal_of_the_current_isr_changes_nothing() -> None:
    assert validated(IsrProposal("t", 0, 4, 6, (3, 2, 1))) is LED


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
def test_a_proposal_for_another_state_is_refused(proposal: IsrProposal, code: ErrorCode) -> None:
    assert validated(proposal) == code


def test_only_the_leader_may_propose() -> None:
    assert validated(IsrProposal("t", 0, 4, 7, (1, 2)), LED._replace(leader=2)) == ErrorCode.INVALID_REQUEST


def test_a_dead_or_stopping_replica_cannot_join_the_isr() -> None:
    proposal = IsrProposal("t", 0, 4, 7, (1, 2))
    alone = LED._replace(isr=(1,))
    assert validated(proposal, alone, eligible=frozenset({1})) == ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(validated(proposal, alone), PartitionState)
