"""Sending ISR proposals to the controller, with retries."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.isr_proposer import IsrProposer
from kbroker.replication.peers import Decision

STATE = PartitionState(1, 3, (1, 2), (1, 2), 8)


class Controller:
    def __init__(self, *answers: PartitionState | Refusal) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.is_away = False

    async def alter(self, wishes: Sequence[IsrProposal]) -> list[PartitionState | Refusal]:
        self.asked.append([wish.topic_name for wish in wishes])
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT)
        return [self.answers.pop(0) for _ in wishes]


def propose(proposer: IsrProposer, topic: str, decided: list[Decision]) -> None:
    proposer.propose(IsrProposal(topic, 0, leader_epoch=3, partition_epoch=7, isr=(1, 2)), decided.append)


async def test_what_comes_together_is_asked_together(nursery: trio.Nursery) -> None:
    controller = Controller(STATE, Refusal(ErrorCode.FENCED_LEADER_EPOCH))
    proposer = IsrProposer(controller.alter)
    nursery.start_soon(proposer.run)
    decided: list[Decision] = []
    propose(proposer, "a", decided)
    propose(proposer, "b", decided)
    await wait_all_tasks_blocked()
    assert controller.asked == [["a", "b"]]
    assert decided == [STATE, ErrorCode.FENCED_LEADER_EPOCH]


async def test_a_controller_that_is_away_is_asked_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    controller = Controller(Refusal(ErrorCode.NOT_CONTROLLER), STATE, STATE)
    controller.is_away = True
    proposer = IsrProposer(controller.alter)
    nursery.start_soon(proposer.run)
    decided: list[Decision] = []
    propose(proposer, "a", decided)
    await trio.sleep(0.12)
    assert len(controller.asked) == 3
    assert not decided
    propose(proposer, "b", decided)
    controller.is_away = False
    await trio.sleep(1)
    assert controller.asked[3:] == [["a", "b"], ["a"]]
    assert decided == [STATE, STATE]
